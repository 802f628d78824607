"""The ACP channel: runs, permissions and tools as the wire states them, nothing else."""

from __future__ import annotations

import pytest

from handlers.aep.levels import Capture
from handlers.lifecycle.bounds import LIMIT
from tests.lifecycle import invariants
from tests.lifecycle.support import only
from tests.lifecycle.wires import Connection, Room, S, types


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def editor(room: Room) -> Connection:
    return room.connect()


def test_a_session_begins_under_its_editors_name(editor: Connection) -> None:
    number, _ = editor.ask("initialize", protocolVersion=1, clientInfo={"name": "zed", "version": "0.200"})
    editor.answer(number, {"agentInfo": {"name": "Kimi Code CLI", "version": "2.1.0"}})
    started = only(editor.new(), "session.started")
    assert started.draft.data == {"client": {"name": "zed", "version": "0.200"}}


def test_an_editor_without_a_name(editor: Connection) -> None:
    assert only(editor.new(), "session.started").draft.data == {"client": {"name": "acp"}}


def test_at_capture_none_nothing_is_added() -> None:
    editor = Room(capture=Capture.NONE).connect()
    editor.ask("initialize", clientInfo={"name": "zed"})
    assert only(editor.new(), "session.started").draft.data == {}
    number, _ = editor.prompt()
    editor.call("c1")
    told = editor.progress("c1", "completed", rawOutput="x") + editor.stop(number)
    assert [event.draft.data for event in told] == [{}, {}]


@pytest.mark.parametrize(
    ("reason", "terminal", "data"),
    [
        ("end_turn", "run.finished", {"stop_reason": "end_turn"}),
        ("max_tokens", "run.finished", {"stop_reason": "max_tokens"}),
        ("max_turn_requests", "run.finished", {"stop_reason": "max_turn_requests"}),
        ("cancelled", "run.cancelled", {"by": "user"}),
        ("refusal", "run.failed", {"reason": "refusal"}),
    ],
)
def test_a_prompt_is_a_run_and_its_answer_the_end(
    editor: Connection, reason: str, terminal: str, data: dict[str, str]
) -> None:
    editor.new()
    number, told = editor.prompt()
    started = only(told, "run.started")
    end = only(editor.stop(number, reason), terminal)
    assert (end.run, end.cause) == (started.run, started.id)
    assert end.draft.data == {**data, "duration_ms": 10}


def test_a_prompt_that_is_refused_alone_failed(editor: Connection) -> None:
    number, _ = editor.prompt()
    end = only(editor.refuse(number, -32000), "run.failed")
    assert end.draft.data == {"reason": "error", "error": {"type": "-32000"}, "duration_ms": 10}


def test_runs_of_two_processes_never_share_an_id(room: Room) -> None:
    for link in ("c1", "c2", "c3"):
        editor = room.connect(link)
        editor.load()
        number, _ = editor.prompt()
        editor.stop(number)
        editor.end()
    runs = [event.run for event in room.of() if event.draft.type == "run.started"]
    assert len(set(runs)) == 3
    invariants.check(room.of())


def test_a_busy_refusal_opens_nothing_and_closes_nothing(room: Room, editor: Connection) -> None:
    first, _ = editor.prompt()
    second, told = editor.prompt(text="another")
    assert types(told) == ["x.session.prompt"]
    refused = editor.refuse(second)
    assert types(refused) == ["x.session.prompt.error"]
    assert refused[0].run == room.of()[0].run
    assert types(editor.stop(first)) == ["run.finished"]
    assert types(room.of()).count("run.started") == 1
    invariants.check(room.of())


def test_a_queued_prompt_becomes_a_run_when_the_first_ends(room: Room, editor: Connection) -> None:
    first, _ = editor.prompt()
    second, _ = editor.prompt(text="another")
    assert types(editor.stop(first)) == ["run.finished", "run.started"]
    assert types(editor.stop(second)) == ["run.finished"]
    invariants.check(room.of())


def test_a_prompt_that_ran_beside_another_has_its_own_run(room: Room, editor: Connection) -> None:
    first, _ = editor.prompt()
    second, _ = editor.prompt(text="another")
    told = editor.stop(second)
    assert types(told) == ["run.started", "run.finished"]
    assert told[1].draft.data["duration_ms"] == 10
    (end,) = editor.stop(first)
    assert end.run == room.of()[0].run != told[0].run


def test_two_processes_prompt_one_session_at_once(room: Room) -> None:
    one, two = room.connect("c1"), room.connect("c2")
    one.load()
    two.load()
    (a, first), (b, second) = one.prompt(), two.prompt()
    call = two.call("2:x")
    assert call[0].run == second[0].run
    (end,) = one.stop(a, "cancelled")
    assert (end.draft.type, end.run) == ("run.cancelled", first[0].run)
    (end,) = two.stop(b)
    assert (end.draft.type, end.run) == ("run.finished", second[0].run)


def test_a_turn_whose_process_is_gone_is_settled_at_the_next_prompt(room: Room, editor: Connection) -> None:
    editor.prompt()
    assert editor.end() == []
    _, told = room.connect("c2").prompt()
    assert types(told) == ["run.cancelled", "run.started"]
    assert told[0].draft.data == {}
    invariants.check(room.of())


def test_a_session_that_another_process_loads_has_no_turn_any_more(room: Room, editor: Connection) -> None:
    number, _ = editor.prompt()
    other = room.connect("c2")
    assert types(other.load())[-2:] == ["run.cancelled", "session.started"]
    # It was alive after all: what it says now is told, and ends nothing twice.
    assert types(editor.stop(number)) == ["x.session.prompt"]
    invariants.check(room.of())


def test_loading_a_session_in_its_own_process_ends_no_turn(editor: Connection) -> None:
    number, _ = editor.prompt()
    editor.load()
    assert types(editor.stop(number)) == ["run.finished"]


def test_an_answer_without_its_prompt(editor: Connection) -> None:
    assert editor.answer(99, {"stopReason": "end_turn"}) == []


@pytest.mark.parametrize("option", ["approve_once", "reject"])
def test_a_permission_is_asked_answered_and_resolved(room: Room, editor: Connection, option: str) -> None:
    run, _ = editor.prompt()
    (call,) = editor.call("2:c1")
    number, (asked,) = editor.permission("2:c1")
    assert (asked.draft.type, asked.cause, asked.draft.subject) == ("attention.requested", call.id, "2:c1")
    answered, resolved = editor.choose(number, option)
    assert answered.draft.data == {"answer": {"option": option}, "via": "oob"}
    assert (resolved.draft.subject, resolved.draft.data) == (
        asked.id,
        {"resolution": "answered", "latency_ms": 10},
    )
    editor.progress("2:c1", "completed" if option == "approve_once" else "failed")
    editor.stop(run)
    assert room.wait(10_000) == []
    assert invariants.check(room.of()) == set()


def test_a_cancelled_permission_is_dismissed(editor: Connection) -> None:
    number, _ = editor.permission("c1")
    assert [event.draft.data for event in editor.choose(number, None)] == [
        {"resolution": "dismissed", "latency_ms": 10}
    ]


@pytest.mark.parametrize("how", ["error", "nonsense"])
def test_a_permission_that_failed_is_dismissed(editor: Connection, how: str) -> None:
    number, _ = editor.permission("c1")
    told = editor.refuse(number, back=True) if how == "error" else editor.answer(number, {}, back=True)
    assert types(told) == ["attention.resolved"]
    assert told[0].draft.data["resolution"] == "dismissed"


def test_a_form_is_a_request_too(editor: Connection) -> None:
    number, (asked,) = editor.ask("elicitation/create", back=True, sessionId=S, message="Which?")
    assert asked.draft.data["kind"] == "form"
    told = editor.answer(number, {"action": "accept", "content": {"n": 3}}, back=True)
    assert types(told) == ["attention.answered", "attention.resolved"]


def test_ids_of_both_directions_and_of_two_processes_are_apart(room: Room) -> None:
    one, two = room.connect("c1"), room.connect("c2")
    runs = [editor.prompt()[0] for editor in (one, two)]
    asks = [editor.permission("c1")[0] for editor in (one, two)]
    assert runs == asks == [0, 0]
    assert types(two.choose(asks[1], "x")) == ["attention.answered", "attention.resolved"]
    assert types(one.stop(runs[0])) == ["run.finished"]
    assert types(one.choose(asks[0], "x")) == ["attention.answered", "attention.resolved"]


def test_a_request_that_nobody_answers_when_its_turn_is_over(room: Room, editor: Connection) -> None:
    run, _ = editor.prompt()
    number, _ = editor.permission("c1")
    editor.stop(run, "cancelled")
    assert types(room.wait(3_000)) == ["attention.resolved"]
    assert types(editor.choose(number, "x")) == ["x.session.request.permission"]
    invariants.check(room.of())


def test_a_subagents_request_outlives_the_turn(room: Room, editor: Connection) -> None:
    run, _ = editor.prompt()
    editor.stop(run)
    number, _ = editor.permission("c1")
    assert room.wait(3_600_000) == []
    assert types(editor.choose(number, "x")) == ["attention.answered", "attention.resolved"]


def test_the_end_of_a_connection_closes_what_it_asked_and_no_run(room: Room) -> None:
    one, two = room.connect("c1"), room.connect("c2")
    one.prompt()
    two.prompt()
    (_, (mine,)), (_, (theirs,)) = one.permission("a"), two.permission("b")
    told = one.end()
    assert types(told) == ["attention.resolved"]
    assert told[0].draft.subject == mine.id
    assert invariants.check([e for e in room.of() if e.run == theirs.run]) == {theirs.id}
    assert one.end() == []


def test_tools_have_the_first_title_for_a_name(room: Room, editor: Connection) -> None:
    run, _ = editor.prompt()
    (asked,) = editor.call("2:c1", "Bash", kind="execute")
    assert asked.draft.data == {"tool": {"name": "Bash", "call_id": "2:c1"}, "kind": "execute"}
    (update,) = editor.progress("2:c1", "in_progress", title="Running: rm -rf", rawInput={"command": "rm"})
    assert update.draft.type == "x.acp.tool_call.update"
    assert "title" not in update.draft.data
    (done,) = editor.progress("2:c1", "completed", rawOutput="ok")
    assert done.cause == asked.id
    assert done.draft.data["tool"] == {"name": "Bash", "call_id": "2:c1"}
    assert done.draft.data["duration_ms"] == 20
    editor.stop(run)
    invariants.check(room.of())


def test_a_call_ends_once(room: Room, editor: Connection) -> None:
    editor.prompt()
    editor.call("c1")
    editor.progress("c1", "failed")
    assert types(editor.progress("c1", "completed", title="Bash")) == ["x.tool_call.update"]
    invariants.check(room.of())


def test_a_call_told_again_is_the_same_call(room: Room, editor: Connection) -> None:
    editor.prompt()
    (asked,) = editor.call("c1")
    assert types(editor.call("c1")) == ["x.tool.call"]
    told = editor.update(sessionUpdate="tool_call", toolCallId="c1", title="Bash", status="completed")
    assert [(event.draft.type, event.cause) for event in told] == [("tool.completed", asked.id)]
    invariants.check(room.of())


def test_a_call_that_is_done_when_it_is_first_told(editor: Connection) -> None:
    told = editor.update(sessionUpdate="tool_call", toolCallId="c1", title="Read", status="completed")
    assert types(told) == ["tool.requested", "tool.completed"]
    assert told[1].cause == told[0].id


def test_a_terminal_without_a_name_is_told_as_an_update(editor: Connection) -> None:
    editor.prompt()
    assert types(editor.progress("c1", "completed")) == ["x.tool_call.update"]
    assert types(editor.progress("c2", "completed", title="Read a.txt")) == ["tool.completed"]


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_a_session_ends_once(room: Room, editor: Connection, method: str) -> None:
    editor.new()
    number, _ = editor.ask(method, sessionId=S)
    ended = only(editor.answer(number, {}), "session.ended")
    assert ended.draft.data == {"reason": "normal", "duration_ms": 20, "runs": 0}
    number, _ = editor.ask(method, sessionId=S)
    assert types(editor.answer(number, {})) == [f"x.{method.replace('/', '.')}"]
    invariants.check(room.of())


def test_a_close_drains_the_turn_and_its_request(room: Room, editor: Connection) -> None:
    editor.new()
    run, _ = editor.prompt()
    editor.permission("c1")
    number, _ = editor.ask("session/close", sessionId=S)
    assert editor.answer(number, {}) == []
    # The turn's own answer comes in a moment, or not at all.
    assert types(room.wait(2_000)) == ["run.cancelled", "attention.resolved", "session.ended"]
    assert types(editor.stop(run, "cancelled")) == ["x.session.prompt"]
    assert invariants.check(room.of()) == set()


def test_a_close_whose_turn_ends_a_moment_later(room: Room, editor: Connection) -> None:
    editor.new()
    run, _ = editor.prompt()
    number, _ = editor.ask("session/close", sessionId=S)
    editor.answer(number, {})
    assert types(editor.stop(run, "cancelled")) == ["run.cancelled", "session.ended"]
    assert room.of()[-2].draft.data == {"by": "user", "duration_ms": 30}


def test_a_failed_close_ends_nothing(editor: Connection) -> None:
    number, _ = editor.ask("session/close", sessionId=S)
    assert types(editor.refuse(number, -32601)) == ["x.session.close.error"]


def test_history_is_never_live(room: Room, editor: Connection) -> None:
    number, told = editor.ask("session/load", sessionId=S, cwd="/", mcpServers=[])
    assert types(told) == ["x.session.load"]
    assert editor.update(sessionUpdate="user_message_chunk", content={"type": "text", "text": "old"}) == []
    assert editor.call("1:old") == []
    assert editor.progress("1:old", "completed", rawOutput="x") == []
    assert editor.update(sessionUpdate="plan", entries=[]) == []
    # Another session of the same process is live meanwhile.
    assert types(editor.update("sess_2", sessionUpdate="plan", entries=[])) == ["x.plan.updated"]
    assert types(editor.answer(number, {})) == ["session.started"]
    assert types(editor.update(sessionUpdate="available_commands_update")) == ["x.available.commands.update"]


def test_several_sessions_of_one_process(room: Room, editor: Connection) -> None:
    for session in ("a", "b"):
        editor.new(session)
    runs = {session: editor.prompt(session)[0] for session in ("a", "b")}
    editor.stop(runs["b"])
    assert types(room.of("a")) == ["session.started", "run.started"]
    assert types(room.of("b")) == ["session.started", "run.started", "run.finished"]


def test_a_fork_begins_the_new_session(room: Room, editor: Connection) -> None:
    number, told = editor.ask("session/fork", sessionId=S)
    assert types(told) == ["x.session.fork"]
    editor.answer(number, {"sessionId": "sess_2"})
    assert only(room.of("sess_2"), "session.started").draft.data["trigger"] == "fork"


def test_a_cancelled_request_is_told_in_its_session(editor: Connection) -> None:
    number, _ = editor.prompt()
    told = editor.tell("$/cancel_request", back=False, requestId=number)
    assert types(told) == ["x.cancel.request"]
    assert told[0].run is not None


def test_chunks_are_told_when_asked_for() -> None:
    editor = Room(capture=Capture.REDACTED, deltas=True).connect()
    editor.prompt()
    (chunk,) = editor.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "Hi"})
    assert (chunk.draft.type, chunk.draft.data) == ("x.acp.agent.message.chunk", {"delta": "Hi"})


def test_a_line_that_comes_again_tells_nothing(room: Room, editor: Connection) -> None:
    editor.new()
    editor.prompt()
    before = len(room.of())
    editor.number -= 1
    editor.prompt()
    assert len(room.of()) == before


def test_the_state_stays_within_its_limits(room: Room) -> None:
    for link in range(12):
        editor = room.connect(f"link{link:028}")
        for number in range(60):
            editor.prompt(text="x" * 5000)
            editor.call(f"{number}:{'c' * 70}", "T" * 300)
            editor.permission(f"{number}:{'c' * 70}")
    state = room.shelf.state(S)
    assert len(state.encode()) <= LIMIT
    assert state.acp is not None
    assert len(state.acp.turns) <= 8
