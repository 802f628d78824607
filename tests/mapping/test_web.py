"""The web channel: what the fixture does not pin."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.aep.canonical import digest
from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.mapping.moments import Moment
from handlers.mapping.web import map_frame
from tests.mapping.payloads import FRAMES, frame
from tests.mapping.support import posture


def primary(heard: dict[str, Any], level: Capture = Capture.METADATA) -> Moment:
    moment = map_frame(heard, "primary", posture(level))
    assert moment is not None
    return moment


@pytest.mark.parametrize("mode", ["companion", "primary"])
@pytest.mark.parametrize(
    "heard",
    [
        {"type": "server_hello", "payload": {}},
        {"type": "ack", "id": "1"},
        {"type": "ping"},
        {"type": "resync_required"},
        {**FRAMES["turn_started"], "volatile": True},
        frame("permission.approval.requested"),
        frame("permission.approval.resolved"),
        frame("background.task.started", info={"taskId": "bash-1"}),
        frame("background.task.terminated", info={"taskId": "bash-1"}),
        {"type": ""},
        {"type": 7},
        {},
    ],
)
def test_frames_that_are_never_events(heard: dict[str, Any], mode: Any) -> None:
    assert map_frame(heard, mode, Posture()) is None


@pytest.mark.parametrize(
    ("envelope", "payload", "session"),
    [
        ("session_1", "session_1", "session_1"),
        ("__global__", "session_2", "session_2"),
        (None, "session_2", "session_2"),
        ("__global__", "__global__", "unknown"),
        (3, None, "unknown"),
    ],
)
def test_the_session_of_a_frame(envelope: Any, payload: Any, session: str) -> None:
    heard = frame("event.session.archived", sessionId=payload)
    assert primary({**heard, "session_id": envelope}).session == session


@pytest.mark.parametrize(
    ("stamp", "ms"),
    [
        ("2026-11-30T14:56:43.506Z", 1796050603506),
        ("2026-11-30T15:56:43.506+01:00", 1796050603506),
        ("2026-11-30T14:56:43", None),
        ("0001-01-01T00:00:00Z", None),
        ("yesterday", None),
        (1796050603506, None),
        (None, None),
    ],
)
def test_the_time_of_a_frame(stamp: Any, ms: int | None) -> None:
    assert primary({**FRAMES["turn_started"], "timestamp": stamp}).time_ms == ms


def test_only_the_main_agents_turns_are_runs() -> None:
    assert primary(FRAMES["turn_sub"]).drafts[0].type == "x.kimi-code.web.turn.started"
    assert primary(frame("turn.ended", agentId="agent-0", reason="completed")).drafts[0].type.startswith("x.")
    assert primary(frame("turn.started", agentId=None)).drafts[0].type == "run.started"


@pytest.mark.parametrize(
    ("origin", "trigger"),
    [
        ({"kind": "user"}, "user"),
        ({"kind": "cron_job"}, "schedule"),
        ({"kind": "task"}, "agent"),
        ({"kind": "goal_continuation"}, "agent"),
        ({}, None),
        ("user", None),
        (None, None),
    ],
)
def test_what_started_a_turn(origin: Any, trigger: str | None) -> None:
    data = primary(frame("turn.started", origin=origin)).drafts[0].data
    assert data == ({} if trigger is None else {"trigger": trigger})


def test_a_failed_turn_names_its_error() -> None:
    data = primary(FRAMES["turn_failed"]).drafts[0].data
    assert data == {"reason": "failed", "error": {"type": "APIStatusError"}}
    assert primary(frame("turn.ended", reason="blocked")).drafts[0].data == {"reason": "blocked"}


def test_a_turn_that_ends_without_a_word_degrades() -> None:
    assert primary(frame("turn.ended", reason=None)).drafts[0].type == "x.kimi-code.web.turn.ended"


def test_duration_and_usage_are_facts() -> None:
    assert primary(FRAMES["turn_completed"]).facts["duration_ms"] == 121
    facts = primary(FRAMES["subagent_completed"]).facts
    assert (facts["input_tokens"], facts["output_tokens"]) == (264, 20)


def test_a_result_waits_for_the_name_of_its_tool() -> None:
    moment = primary(FRAMES["tool_result"])
    assert moment.drafts == ()
    assert moment.partial is not None
    assert moment.partial.type == "tool.completed"
    assert moment.partial.data["tool"] == {"call_id": "call_1"}
    failed = primary(FRAMES["tool_failed"]).partial
    assert failed is not None
    assert failed.data == {"tool": {"call_id": "call_1"}, "error": {"type": "tool_error"}}


@pytest.mark.parametrize("decision", [None, "cancelled", ...])
def test_an_approval_without_a_decision_is_dismissed(decision: Any) -> None:
    more = {} if decision is ... else {"decision": decision}
    draft = primary(frame("event.approval.resolved", approval_id="approval_1", **more)).drafts[0]
    assert (draft.type, draft.subject) == ("attention.resolved", "approval_1")


@pytest.mark.parametrize("decision", ["error", 3, ["approved"], "postponed"])
def test_a_decision_that_answers_nothing_degrades(decision: Any) -> None:
    moment = primary(frame("event.approval.resolved", approval_id="approval_1", decision=decision))
    assert moment.drafts == (moment.fallback,)


@pytest.mark.parametrize(
    "kind", ["event.approval.requested", "event.question.requested", "event.question.answered"]
)
def test_an_ask_without_an_id_degrades(kind: str) -> None:
    moment = primary(frame(kind, questions=[], answers={}))
    assert moment.drafts == (moment.fallback,)


def test_a_form_carries_the_vendors_ids_and_no_way_to_answer() -> None:
    data = primary(FRAMES["question_requested"], Capture.FULL).drafts[0].data
    assert set(data) == {"kind", "prompt", "fields"}


def test_questions_and_answers_meet_by_digest() -> None:
    asked = frame(
        "event.question.requested",
        question_id="q",
        questions=[
            {"id": "q_0", "question": "Which?", "options": [{"id": "o_0", "label": "A"}, {"label": "B"}]}
        ],
    )
    answered = frame("event.question.answered", question_id="q", answers={"Which?": "A, B", "other": 3})
    assert primary(asked).facts["questions"] == [
        ["q_0", digest("Which?"), [["o_0", digest("A")], ["opt_0_1", digest("B")]]]
    ]
    assert primary(answered).facts["answers"] == [
        [digest("Which?"), [digest("A, B"), digest("A"), digest("B")]]
    ]


def test_answers_in_words_need_redacted() -> None:
    answered = frame("event.question.answered", question_id="q", answers={"Which?": "A"})
    assert primary(answered).drafts[0].data == {"answer": {}, "via": "oob"}
    assert primary(answered, Capture.REDACTED).drafts[0].data["answer"] == {"values": {"Which?": "A"}}


def test_answers_by_id_are_structure() -> None:
    chosen = {"kind": "single", "option_id": "opt_0_0"}
    answers = {
        "q_0": chosen,
        "q_1": {"kind": "multi", "option_ids": ["a", "b"]},
        "q_2": {"kind": "other", "text": "in my own words"},
        "a question": chosen,
    }
    data = primary(frame("event.question.answered", question_id="q", answers=answers)).drafts[0].data
    assert data["answer"] == {"values": {"q_0": chosen, "q_1": answers["q_1"]}}


def test_subagents_by_their_lifecycle() -> None:
    started = primary(FRAMES["subagent_spawned"]).drafts[0]
    assert (started.type, started.subject) == ("delegation.subagent.started", "coder")
    assert started.data == {"child": {"agent": "agent-0"}, "agent_type": "coder"}
    stopped = primary(FRAMES["subagent_failed"]).drafts[0]
    assert stopped.data == {"child": {"agent": "agent-0"}, "status": "failed"}


def test_background_tasks_once() -> None:
    assert primary(FRAMES["task_started"]).drafts[0].data == {"task": {"id": "bash-1"}}
    ended = primary(FRAMES["task_terminated"], Capture.FULL).drafts[0]
    assert ended.type == "progress.task.completed"
    assert set(ended.data["task"]) == {"id", "title"}


def test_compaction_of_the_session_only() -> None:
    assert primary(FRAMES["compaction_completed"]).drafts[0].data == {"estimated_token_count": 302}
    child = frame("compaction.completed", agentId="agent-0", result={"tokensAfter": 3})
    assert primary(child).drafts[0].type == "x.kimi-code.web.compaction.completed"


def test_no_session_lifecycle_is_made_up() -> None:
    for kind in ("event.session.created", "event.session.archived", "agent.created", "agent.disposed"):
        assert primary(frame(kind)).drafts[0].type == f"x.kimi-code.web.{kind}"


@pytest.mark.parametrize("kind", ["Brand.NewFrame!", "a..b", "...", "\ud800", "x" * 9000, "frage/ä"])
def test_unknown_frames_get_a_legal_name(kind: str) -> None:
    assert primary(frame(kind)).drafts[0].type.startswith("x.kimi-code.web.")
