"""The session's own beginning and end (DESIGN §4 rules 7 and 8; AEP-0002 §2.5)."""

from __future__ import annotations

from handlers.aep.ulid import Mint
from handlers.lifecycle.reducer import Input, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.hooks import map_hook
from tests.lifecycle.support import START_MS, Story, only, payload, types


def test_the_end_tells_what_was_seen_from_beginning_to_end() -> None:
    story = Story()
    begin = story.hook("SessionStart", source="startup")[0]
    for turn in range(2):
        story.prompt(turn)
        story.hook("Stop")
    ended = only(story.hook("SessionEnd", reason="exit"), "session.ended")
    assert ended.draft.data == {"reason": "normal", "duration_ms": story.at - begin.time_ms, "runs": 2}
    assert ended.cause == begin.id


def test_a_session_met_on_the_way_claims_no_length() -> None:
    story = Story()
    story.hook("SessionStart", source="resume")
    story.prompt(0)
    story.hook("Stop")
    assert story.hook("SessionEnd", reason="archive")[0].draft.data == {"reason": "normal"}


def test_everything_is_closed_before_the_end() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.ask("c")
    story.fail("c")
    story.answer("d", "approved")
    assert story.hook("SessionEnd", reason="exit") == []
    told = story.wait(1_000)
    assert types(told) == [
        "tool.failed",
        "attention.resolved",
        "run.cancelled",
        "x.permission_result",
        "session.ended",
    ]
    assert told[-1].time_ms == story.at - 1_000


def test_a_late_end_of_the_run_is_awaited() -> None:
    story = Story("v1")
    story.prompt()
    assert story.hook("SessionEnd", reason="exit") == []
    told = story.hook("StopFailure", error_type="APIStatusError")
    assert types(told) == ["run.failed", "session.ended"]
    assert story.wait(10_000) == []


def test_a_held_end_is_not_awaited() -> None:
    story = Story("v2")
    story.prompt()
    story.pre("a", "Agent", background=True)
    story.hook("Stop")
    assert types(story.hook("SessionEnd", reason="exit")) == ["run.finished", "session.ended"]


def test_a_session_ends_once_also_after_a_resume() -> None:
    story = Story()
    story.hook("SessionEnd", reason="exit")
    assert types(story.hook("SessionEnd", reason="exit")) == ["x.session_end"]
    assert types(story.hook("SessionStart", source="resume")) == ["session.started"]
    assert types(story.prompt(0)) == ["run.started", "x.turn_started"]
    assert types(story.hook("SessionEnd", reason="exit")) == []
    assert types(story.hook("Stop")) == ["run.finished", "x.session_end"]


def test_a_second_end_while_the_first_waits_degrades() -> None:
    story = Story()
    story.prompt(0)
    story.hook("SessionEnd", reason="exit")
    assert types(story.hook("SessionEnd", reason="exit")) == ["x.session_end"]
    assert types(story.wait(1_000)) == ["run.cancelled", "session.ended"]


def test_a_prompt_or_a_start_does_not_wait_for_an_end() -> None:
    story = Story()
    story.prompt(0)
    story.hook("SessionEnd", reason="exit")
    assert types(story.prompt())[:3] == ["run.cancelled", "session.ended", "run.started"]


def test_late_events_of_an_ended_session_are_told() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.hook("Stop")
    story.hook("SessionEnd", reason="exit")
    assert types(story.post("c")) == ["tool.completed"]
    assert types(story.ask("d")) == ["attention.requested"]
    assert types(story.wait(2_000)) == ["attention.resolved"]


def test_a_tombstone_remembers_the_end_and_the_position() -> None:
    story = Story()
    ended = story.hook("SessionEnd", reason="exit")[0]
    story.shelf.put(SessionState.tombstone(ended.seq).encode())
    assert types(story.hook("SessionEnd", reason="exit")) == ["x.session_end"]
    assert story.events[-1].seq > ended.seq


def test_positions_rise_above_the_state_and_the_stream() -> None:
    story = Story()
    story.hook("Stop")
    moment = story.hook("Stop")[0]
    assert moment.seq == story.at - 1_767_225_600_000
    assert story.state is not None
    story.at -= 60_000
    assert story.hook("Stop")[0].seq == moment.seq + 1
    top = moment.seq + 1_000
    given = Input(map_hook(payload("Stop"), story.posture), START_MS, Mint(0, bytes(10)))
    assert reduce(None, [given], START_MS, top=top).events[0].seq == top + 1
    assert reduce(None, [Input(Tick(), START_MS, given.mint)], START_MS, top=top).state.last_seq == top


def test_events_of_no_session_are_told_and_claim_nothing() -> None:
    story = Story()
    told = [
        *story.hook("SessionStart", session="", source="startup"),
        *story.hook("UserPromptSubmit", session=""),
        *story.hook("PreToolUse", session="", tool_name="Bash", tool_call_id="c"),
        *story.hook("PermissionRequest", session="", tool_name="Bash", tool_call_id="c"),
        *story.hook("SubagentStart", session="", agent_name="coder"),
        *story.hook("Stop", session=""),
        *story.hook("SessionEnd", session="", reason="exit"),
    ]
    assert types(told) == [
        "session.started",
        "x.user_prompt_submit",
        "tool.requested",
        "x.permission_request",
        "delegation.subagent.started",
        "x.stop",
        "x.session_end",
    ]
    assert all(event.run is None for event in told)
