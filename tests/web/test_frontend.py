"""What frames mean to a session: runs, calls, requests, answers, subagents, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.lifecycle.reducer import Emitted
from handlers.mapping.web import map_frame
from tests.web.frames import Journal
from tests.web.stage import SESSION, Stage

QUESTIONS = [
    {
        "id": "q_0",
        "question": "Which colour?",
        "options": [{"id": "opt_0_0", "label": "Red"}, {"id": "opt_0_1", "label": "Blue, dark"}],
    },
    {
        "id": "q_1",
        "question": "Which sizes?",
        "multi_select": True,
        "allow_other": True,
        "options": [{"id": "opt_1_0", "label": "S"}, {"id": "opt_1_1", "label": "M"}],
    },
]


def play(journal: Journal, **given: Any) -> Stage:
    stage = Stage(**given)
    for frame in journal:
        stage.frame(frame)
    return stage


def only(stage: Stage, kind: str) -> Emitted:
    (found,) = [event for _, event in stage.told if event.draft.type == kind]
    return found


def test_a_turn_is_a_run_with_the_vendors_own_duration_and_usage() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=7, origin={"kind": "cron_job"})
    for _ in range(2):
        usage = {"inputOther": 10, "inputCacheRead": 5, "inputCacheCreation": 1, "output": 3}
        journal.add("turn.step.completed", turnId=7, usage=usage)
    journal.add("turn.step.completed", turnId=0, agentId="agent-0", usage={"inputOther": 999, "output": 999})
    journal.add("turn.ended", turnId=7, reason="completed", durationMs=1_234)
    stage = play(journal)
    assert only(stage, "run.started").draft.data == {"trigger": "schedule"}
    assert only(stage, "run.finished").draft.data == {
        "duration_ms": 1_234,
        "gen_ai.usage.input_tokens": 32,
        "gen_ai.usage.output_tokens": 6,
    }


def test_a_step_without_usage_leaves_the_sum_out() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.add("turn.step.completed", turnId=0, usage={"inputOther": 10, "output": 3})
    journal.add("turn.step.completed", turnId=0)
    journal.add("turn.ended", turnId=0, reason="completed", durationMs=5)
    assert only(play(journal), "run.finished").draft.data == {"duration_ms": 5}


def test_an_end_that_is_not_this_runs_is_only_told() -> None:
    journal = Journal()
    journal.add("turn.ended", turnId=4, reason="completed")
    journal.add("turn.started", turnId=5)
    journal.add("turn.ended", turnId=4, reason="completed")
    journal.add("turn.ended", turnId=0, agentId="agent-0", reason="completed")
    journal.add("turn.ended", turnId=5, reason="failed", error={"name": "APIStatusError"})
    journal.add("turn.ended", turnId=5, reason="completed")
    stage = play(journal)
    assert stage.types() == ["run.started", "run.failed"]


def test_a_turn_whose_end_was_never_told_is_settled_by_the_next() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.add("turn.started", turnId=1)
    assert play(journal).types() == ["run.started", "run.cancelled", "run.started"]


def test_calls_are_paired_by_agent_turn_and_call() -> None:
    """Turn ids begin anew with every agent, and call ids with every turn."""
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.add("tool.call.started", turnId=0, toolCallId="call_0", name="Agent")
    journal.add("tool.call.started", turnId=0, toolCallId="call_0", name="Read", agentId="agent-0")
    journal.add("tool.result", turnId=0, toolCallId="call_0", output="child", agentId="agent-0")
    journal.add("tool.result", turnId=0, toolCallId="call_0", output="parent")
    journal.add("tool.result", turnId=1, toolCallId="call_0", output="of no call")
    journal.add("tool.result", turnId=0, toolCallId="call_0", output="again")
    stage = play(journal)
    ends = [e for _, e in stage.told if e.draft.type == "tool.completed"]
    assert [end.draft.data["tool"] for end in ends] == [
        {"name": "Read", "call_id": "call_0"},
        {"name": "Agent", "call_id": "call_0"},
    ]
    assert [end.draft.subject for end in ends] == ["Read", "Agent"]
    told = [e.draft.type for _, e in stage.told]
    assert told.count("x.kimi-code.web.tool.result") == 2


def test_a_result_without_its_request_is_only_told() -> None:
    journal = Journal()
    journal.add("tool.result", turnId=0, toolCallId="call_0", output="x")
    assert play(journal).types() == []


@pytest.mark.parametrize(
    ("decision", "types"),
    [
        ("approved", ["attention.answered", "attention.resolved"]),
        ("rejected", ["attention.answered", "attention.resolved"]),
        ("cancelled", ["attention.resolved"]),
        (None, ["attention.resolved"]),
    ],
)
def test_an_approval_ends_as_the_vendor_says(decision: str | None, types: list[str]) -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.approval(0, "approval_1")
    journal.resolved("approval_1", decision)
    journal.resolved("approval_1", decision)
    stage = play(journal)
    assert stage.types() == ["run.started", "attention.requested", *types]
    request = only(stage, "attention.requested")
    assert {e.draft.subject for _, e in stage.told if e.draft.type in types} == {request.id}
    resolved = only(stage, "attention.resolved")
    assert resolved.draft.data["resolution"] == ("answered" if len(types) == 2 else "dismissed")


def test_a_request_outlives_the_turns_end_until_the_vendor_tells_of_it() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.approval(0, "approval_1")
    journal.add("turn.ended", turnId=0, reason="cancelled")
    stage = play(journal)
    assert "attention.resolved" not in stage.types()
    stage.frame(journal.resolved("approval_1", None))
    assert stage.types()[-1] == "attention.resolved"
    stage.frame(journal.add("turn.started", turnId=1))
    stage.frame(journal.approval(1, "approval_2"))
    stage.frame(journal.add("turn.ended", turnId=1, reason="cancelled"))
    stage.wait(stage.at + 5_000)
    assert stage.types().count("attention.resolved") == 2


def test_what_a_background_subagent_asks_stays_open_at_the_runs_end() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    asked = journal.approval(0, "approval_1")
    asked["payload"]["agentId"] = "agent-0"
    journal.add("turn.ended", turnId=0, reason="completed")
    stage = play(journal)
    stage.wait(stage.at + 60_000)
    assert "attention.resolved" not in stage.types()


@pytest.mark.parametrize("level", [Capture.METADATA, Capture.REDACTED, Capture.FULL])
def test_answers_become_ids_again(level: Capture) -> None:
    """The living vendor answers in words; ids are structure and ride at any level."""
    journal = Journal()
    journal.add("event.question.requested", question_id="question_1", questions=QUESTIONS, turn_id=0)
    answers = {"Which colour?": "Blue, dark", "Which sizes?": "S, M"}
    journal.add("event.question.answered", question_id="question_1", answers=answers)
    stage = play(journal, posture=Posture(capture=level, attention=level))
    answered = only(stage, "attention.answered").draft
    assert answered.data["answer"] == {"values": {"q_0": "opt_0_1", "q_1": ["opt_1_0", "opt_1_1"]}}


@pytest.mark.parametrize(
    ("level", "values"),
    [
        (Capture.METADATA, {"q_0": "opt_0_0"}),
        (Capture.REDACTED, {"q_0": "opt_0_0", "q_1": "something of my own"}),
    ],
)
def test_words_of_ones_own_ride_at_redacted_only(level: Capture, values: dict[str, str]) -> None:
    journal = Journal()
    journal.add("event.question.requested", question_id="question_1", questions=QUESTIONS)
    answers = {"Which colour?": "Red", "Which sizes?": "something of my own"}
    journal.add("event.question.answered", question_id="question_1", answers=answers)
    stage = play(journal, posture=Posture(capture=level, attention=level))
    assert only(stage, "attention.answered").draft.data["answer"] == {"values": values}


def test_a_question_that_the_turns_end_closed_was_not_answered() -> None:
    journal = Journal()
    journal.add("event.question.requested", question_id="question_1", questions=QUESTIONS)
    over = {"cancelled": True, "reason": "turn_ended"}
    journal.add("event.question.answered", question_id="question_1", answers=over)
    stage = play(journal)
    assert stage.types() == ["attention.requested", "attention.resolved"]


def test_subagents_and_tasks_come_from_what_began_them() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=0)
    journal.add("tool.call.started", turnId=0, toolCallId="call_0", name="Agent")
    spawned = {"subagentId": "agent-0", "subagentName": "coder", "parentToolCallId": "call_0"}
    journal.add("subagent.spawned", **spawned)
    journal.add("subagent.failed", subagentId="agent-0")
    journal.add("task.started", info={"taskId": "bash-1", "status": "running"})
    journal.add("background.task.started", info={"taskId": "bash-1"})
    journal.add("task.terminated", info={"taskId": "bash-1", "status": "completed"})
    stage = play(journal)
    request, started = only(stage, "tool.requested"), only(stage, "delegation.subagent.started")
    stopped, planned = only(stage, "delegation.subagent.stopped"), only(stage, "progress.task.planned")
    assert (started.cause, stopped.cause) == (request.id, started.id)
    assert only(stage, "progress.task.completed").cause == planned.id
    assert stopped.draft.data["status"] == "failed"


@pytest.mark.parametrize("first", ["SessionStart", "UserPromptSubmit"])
def test_hooks_of_a_session_keep_its_story_even_in_primary_mode(first: str) -> None:
    stage = Stage()
    stage.hook({"hook_event_name": first, "session_id": SESSION, "is_steer": False, "source": "startup"})
    before = stage.types()
    journal = Journal()
    journal.turn(0, calls=["call_0"])
    journal.approval(0, "approval_1")
    for frame in journal:
        stage.frame(frame)
    stage.resync(number=50, running=True, turn=3)
    assert stage.types() == before


def test_nothing_rides_at_capture_none() -> None:
    journal = Journal()
    journal.turn(0, calls=["call_0"])
    journal.approval(0, "approval_1")
    journal.resolved("approval_1", "approved")
    stage = play(journal, posture=Posture(capture=Capture.NONE, attention=Capture.NONE))
    stage.resync(number=90, reason="gap", missed=3, bare=True)
    assert [event.draft.data for _, event in stage.told] == [{}] * len(stage.told)


def test_events_of_no_session_claim_nothing() -> None:
    stage = Stage()
    stage.frame({"type": "turn.started", "seq": 1, "payload": {"turnId": 0}})
    stage.frame({"type": "event.workspace.created", "seq": 1, "session_id": "__global__", "payload": {}})
    assert {session for session, _ in stage.told} == {"unknown"}
    assert stage.types() == []


def test_a_snapshot_that_agrees_says_nothing() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=3)
    journal.approval(3, "approval_1")
    stage = play(journal)
    asked = map_frame(journal.frames[-1], "primary", Posture())
    assert asked is not None
    before = len(stage.told)
    stage.resync(number=10, running=True, turn=3, asks=(asked,))
    assert len(stage.told) == before


def test_a_snapshot_closes_what_is_over_and_opens_what_goes_on() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=3)
    journal.approval(3, "approval_1")
    stage = play(journal)
    asked = map_frame(Journal(seq=50).approval(6, "approval_2"), "primary", Posture())
    assert asked is not None
    stage.resync(number=60, running=True, turn=6, asks=(asked,), reason="buffer_overflow", missed=57)
    assert stage.types() == [
        "run.started",
        "attention.requested",
        "attention.resolved",
        "run.cancelled",
        "run.started",
        "attention.requested",
    ]
    stage.frame(Journal(seq=60).add("turn.ended", turnId=6, reason="completed", durationMs=8))
    assert only(stage, "run.finished").draft.data == {"duration_ms": 8}


def test_a_snapshot_that_is_older_than_what_was_told_is_nothing() -> None:
    journal = Journal()
    journal.add("turn.started", turnId=3)
    stage = play(journal)
    stage.resync(number=60, reason="gap", running=True, turn=3)
    told = len(stage.told)
    stage.resync(number=59, reason="gap")
    stage.resync(number=60, reason="gap", running=True, turn=3)
    assert len(stage.told) == told


def test_companion_tells_a_gap_too() -> None:
    stage = Stage("companion")
    stage.resync(number=9, reason="epoch_changed", running=True, turn=1)
    assert [event.draft.type for _, event in stage.told] == ["x.kimi-code.web.gap"]
