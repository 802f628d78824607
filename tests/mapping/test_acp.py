"""The ACP channel: a stated outcome for every method of the protocol's tables, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.mapping.acp import map_moment
from tests.mapping.payloads import MOMENTS
from tests.mapping.support import posture

# method, what the request becomes, what its answer becomes, what its error becomes
METHODS: list[tuple[str, str, str | None, str]] = [
    # core, editor to agent
    ("initialize", "x.acp.initialize.event", None, "x.acp.initialize.error"),
    ("authenticate", "x.acp.authenticate.event", None, "x.acp.authenticate.error"),
    ("logout", "x.acp.logout.event", None, "x.acp.logout.error"),
    # session, editor to agent
    ("session/new", "x.acp.session.new", "session.started", "x.acp.session.new.error"),
    ("session/load", "x.acp.session.load", "session.started", "x.acp.session.load.error"),
    ("session/resume", "x.acp.session.resume", "session.started", "x.acp.session.resume.error"),
    ("session/list", "x.acp.session.list", None, "x.acp.session.list.error"),
    ("session/fork", "x.acp.session.fork", "session.started", "x.acp.session.fork.error"),
    ("session/close", "x.acp.session.close", "session.ended", "x.acp.session.close.error"),
    ("session/delete", "x.acp.session.delete", "session.ended", "x.acp.session.delete.error"),
    ("session/prompt", "run.started", "run.finished", "run.failed"),
    ("session/cancel", "x.acp.session.cancel", None, "x.acp.session.cancel.error"),
    ("session/set_mode", "x.acp.session.set.mode", None, "x.acp.session.set.mode.error"),
    (
        "session/set_config_option",
        "x.acp.session.set.config.option",
        None,
        "x.acp.session.set.config.option.error",
    ),
    # extension
    ("session/set_model", "x.acp.session.set.model", None, "x.acp.session.set.model.error"),
    # reverse, agent to editor
    ("session/request_permission", "attention.requested", None, "attention.resolved"),
    ("fs/read_text_file", "x.acp.fs.read.text.file", None, "x.acp.fs.read.text.file.error"),
    ("fs/write_text_file", "x.acp.fs.write.text.file", None, "x.acp.fs.write.text.file.error"),
    ("terminal/create", "x.acp.terminal.create", None, "x.acp.terminal.create.error"),
    ("terminal/output", "x.acp.terminal.output", None, "x.acp.terminal.output.error"),
    ("terminal/release", "x.acp.terminal.release", None, "x.acp.terminal.release.error"),
    ("terminal/kill", "x.acp.terminal.kill", None, "x.acp.terminal.kill.error"),
    ("terminal/wait_for_exit", "x.acp.terminal.wait.for.exit", None, "x.acp.terminal.wait.for.exit.error"),
    ("elicitation/create", "attention.requested", None, "attention.resolved"),
    ("elicitation/complete", "x.acp.elicitation.complete", None, "x.acp.elicitation.complete.error"),
    # the JSON-RPC cancellation, surfaces the agent does not have, and what nobody knows yet
    ("$/cancel_request", "x.acp.cancel.request", None, "x.acp.cancel.request.error"),
    ("providers/list", "x.acp.providers.list", None, "x.acp.providers.list.error"),
    ("nes/start", "x.acp.nes.start", None, "x.acp.nes.start.error"),
    ("document/didOpen", "x.acp.document.did_open", None, "x.acp.document.did_open.error"),
    ("future/method", "x.acp.future.method", None, "x.acp.future.method.error"),
]


@pytest.mark.parametrize(("method", "asked", "answered", "refused"), METHODS, ids=[m[0] for m in METHODS])
def test_every_method(method: str, asked: str, answered: str | None, refused: str) -> None:
    types = [
        [draft.type for draft in map_moment(kind, method, body, Posture()).drafts]
        for kind, body in (
            ("request", {"sessionId": "s"}),
            ("notification", {"sessionId": "s"}),
            ("response", {"sessionId": "s"}),
            ("error", {"code": -32603, "message": "no"}),
        )
    ]
    assert types == [[asked], [asked], [] if answered is None else [answered], [refused]]


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        ("tool_call", "tool.requested"),
        ("tool_call_update", "x.acp.tool_call.update"),
        ("plan", "x.acp.plan.updated"),
        ("usage_update", "x.acp.usage.updated"),
        ("available_commands_update", "x.acp.available.commands.update"),
        ("current_mode_update", "x.acp.current.mode.update"),
        ("config_option_update", "x.acp.config.option.update"),
        ("session_info_update", "x.acp.session.info.update"),
        ("agent_message_chunk", None),
        ("agent_thought_chunk", None),
        ("user_message_chunk", None),
        ("future_update", "x.acp.future.update"),
        ("", "x.acp.session.update"),
        (None, "x.acp.session.update"),
    ],
)
def test_every_update(kind: Any, typed: str | None) -> None:
    params = {"sessionId": "s", "update": {"sessionUpdate": kind, "toolCallId": "1:c", "title": "Bash"}}
    moment = map_moment("notification", "session/update", params, Posture())
    assert [draft.type for draft in moment.drafts] == ([] if typed is None else [typed])


@pytest.mark.parametrize("kind", ["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"])
@pytest.mark.parametrize("level", [Capture.METADATA, Capture.REDACTED])
def test_deltas_are_asked_for_and_need_redacted(kind: str, level: Capture) -> None:
    params = {"update": {"sessionUpdate": kind, "content": {"type": "text", "text": "hm"}}}
    moment = map_moment("notification", "session/update", params, posture(level, acp_deltas=True))
    assert [draft.data for draft in moment.drafts] == [{"delta": "hm"} if level is Capture.REDACTED else {}]


@pytest.mark.parametrize(
    ("result", "typed", "data"),
    [
        ({"stopReason": "max_turn_requests"}, "run.finished", {"stop_reason": "max_turn_requests"}),
        ({"stopReason": "a_later_word"}, "run.finished", {"stop_reason": "a_later_word"}),
        ({"stopReason": 3}, "run.finished", {}),
        ({}, "run.finished", {}),
        (None, "run.finished", {}),
    ],
)
def test_how_a_prompt_ends(result: Any, typed: str, data: dict[str, Any]) -> None:
    moment = map_moment("response", "session/prompt", result, Posture())
    assert [(draft.type, draft.data) for draft in moment.drafts] == [(typed, data)]


def test_a_prompt_that_is_refused_fails_with_its_code() -> None:
    data = map_moment(*MOMENTS["prompt_error"], Posture()).drafts[0].data
    assert data == {"reason": "error", "error": {"type": "-32600"}}


@pytest.mark.parametrize(("method", "how"), [("session/load", "load"), ("session/fork", "fork")])
def test_a_session_that_was_there_before_says_how_it_came(method: str, how: str) -> None:
    data = map_moment("response", method, {}, Posture()).drafts[0].data
    assert data == {"client": {"name": "acp"}, "trigger": how}


@pytest.mark.parametrize(
    ("body", "asked", "session"),
    [
        ({"sessionId": "s2"}, {"sessionId": "s1"}, "s2"),
        ({}, {"sessionId": "s1"}, "s1"),
        (None, None, "unknown"),
        ([], {"sessionId": 4}, "unknown"),
    ],
)
def test_the_session_is_the_answers_or_the_requests(body: Any, asked: Any, session: str) -> None:
    assert map_moment("response", "session/fork", body, Posture(), asked=asked).session == session


def test_a_terminal_without_a_title_waits_for_its_name() -> None:
    moment = map_moment(*MOMENTS["tool_completed"], Posture())
    assert [draft.type for draft in moment.drafts] == ["x.acp.tool_call.update"]
    assert moment.partial is not None
    assert (moment.partial.type, moment.partial.data["tool"]) == ("tool.completed", {"call_id": "2:call_1"})


def test_a_call_that_arrives_done_is_request_and_terminal() -> None:
    moment = map_moment(*MOMENTS["tool_call_done"], Posture())
    assert [draft.type for draft in moment.drafts] == ["tool.requested", "tool.completed"]


def test_arguments_in_the_middle_leave_their_digest() -> None:
    moment = map_moment(*MOMENTS["tool_running"], Posture())
    assert set(moment.drafts[0].data) == {"status", "args_digest"}
    assert moment.facts["args_digest"] == moment.drafts[0].data["args_digest"]


def test_a_permission_shows_the_calls_own_text_below_its_title() -> None:
    params = {
        "toolCall": {
            "toolCallId": "2:c",
            "title": "Bash",
            "content": [{"type": "content", "content": {"type": "text", "text": "Running: ls"}}],
        }
    }
    data = map_moment("request", "session/request_permission", params, Posture()).drafts[0].data
    assert data == {"kind": "permission", "prompt": "Permission requested: Bash\nRunning: ls"}


def test_usage_of_the_living_vendor() -> None:
    data = map_moment(*MOMENTS["usage"], Posture()).drafts[0].data
    assert data == {"gen_ai.usage.input_tokens": 140, "size": 262144}


def test_a_form_is_asked_and_answered() -> None:
    level = Capture.METADATA
    asked = map_moment(*MOMENTS["form"], posture(level)).drafts[0]
    assert asked.data == {"kind": "form", "prompt": "acp requests form", "fields_count": 1}
    answered = map_moment(*MOMENTS["form_accepted"], posture(level)).drafts[0]
    assert answered.data == {"answer": {"values": {"n": 3}}, "via": "oob"}


def test_facts_of_initialize() -> None:
    facts = map_moment(*MOMENTS["initialize"], Posture()).facts
    assert (facts["client_name"], facts["client_version"]) == ("zed", "1.2")
