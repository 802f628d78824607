"""Observed permission requests, each with exactly one terminal (DESIGN §4 rule 6)."""

from __future__ import annotations

import pytest

from tests.lifecycle.support import Story, only, types


def _asked(engine: str = "new", **more: object) -> tuple[Story, str]:
    story = Story(engine)
    story.prompt(3 if engine == "new" else None)
    story.pre("c")
    return story, story.ask("c", **more)[0].id


def test_an_answer_resolves_its_request() -> None:
    story, request = _asked()
    told = story.answer("c", "approved", after=700)
    assert types(told) == ["attention.answered", "attention.resolved"]
    assert {event.draft.subject for event in told} == {request}
    assert {event.cause for event in told} == {request}
    assert told[0].draft.data == {"answer": {"option": "approved"}, "via": "oob"}
    assert told[1].draft.data == {"resolution": "answered", "latency_ms": 700}


def test_a_cancelled_answer_dismisses() -> None:
    story, request = _asked()
    told = story.answer("c", "cancelled")
    assert types(told) == ["attention.resolved"]
    assert told[0].draft.subject == request
    assert told[0].draft.data == {"resolution": "dismissed", "latency_ms": 10}


def test_an_answer_that_overtakes_its_request_is_kept_for_it() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    assert story.answer("c", "rejected", id="approval_1") == []
    assert story.fail("c") == []
    told = story.ask("c", id="approval_1")
    assert types(told) == [
        "attention.requested",
        "attention.answered",
        "attention.resolved",
        "tool.denied",
        "x.post_tool_use_failure",
    ]


def test_an_answer_to_a_request_never_seen_degrades() -> None:
    story = Story()
    story.prompt(0)
    assert story.answer("c", "approved") == []
    at = story.at
    told = story.wait(2_000)
    assert types(told) == ["x.permission_result"]
    assert told[0].time_ms == at


def test_a_second_answer_degrades() -> None:
    story, _ = _asked()
    story.answer("c", "approved")
    assert types(story.answer("c", "approved") + story.wait(2_000)) == ["x.permission_result"]


def test_the_same_request_twice_is_one() -> None:
    story, _ = _asked(id="approval_1")
    assert types(story.ask("c", id="approval_1")) == ["x.permission_request"]


def test_a_tools_result_never_closes_a_request() -> None:
    story, _ = _asked()
    assert types(story.post("c")) == ["tool.completed"]
    assert types(story.answer("c", "approved")) == ["attention.answered", "attention.resolved"]


@pytest.mark.parametrize(
    ("event", "fields", "terminal"),
    [
        ("Interrupt", {"turn_id": 3, "reason": "cancelled"}, "run.cancelled"),
        ("StopFailure", {}, "run.failed"),
    ],
)
def test_interrupt_and_failure_dismiss_at_once(event: str, fields: dict[str, object], terminal: str) -> None:
    story, request = _asked(agent_id="main")
    story.fail("c")
    told = story.hook(event, **fields)
    assert types(told) == ["attention.resolved", "tool.failed", terminal]
    assert told[0].draft.subject == request


def test_stop_gives_the_answer_two_seconds() -> None:
    story, request = _asked()
    story.hook("Stop")
    assert story.wait(1_999) == []
    told = story.wait(1)
    assert types(told) == ["attention.resolved"]
    assert told[0].draft.subject == request
    assert story.wait(100_000_000) == []


def test_an_answer_after_stop_still_counts() -> None:
    story, _ = _asked()
    story.hook("Stop")
    assert types(story.answer("c", "approved")) == ["attention.answered", "attention.resolved"]


def test_the_next_prompt_dismisses() -> None:
    story, _ = _asked("v1")
    assert types(story.prompt()) == ["attention.resolved", "run.cancelled", "run.started"]


def test_a_broken_answer_degrades_and_the_request_is_dismissed_soon() -> None:
    story, _ = _asked()
    assert types(story.answer("c", "error")) == ["x.permission_result"]
    assert types(story.wait(2_000)) == ["attention.resolved"]


def test_a_request_that_comes_after_the_end_is_dismissed_soon() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.hook("Interrupt", turn_id=0, reason="cancelled")
    assert types(story.ask("c", agent_id="main")) == ["attention.requested"]
    assert types(story.wait(2_000)) == ["attention.resolved"]


def test_a_background_subagents_request_outlives_the_main_run() -> None:
    story = Story()
    story.prompt(3)
    story.pre("a", "Agent", background=True)
    story.pre("c")
    story.ask("c", agent_id="agent-1", turn_id=0)
    story.hook("Interrupt", turn_id=3, reason="cancelled")
    assert story.wait(60_000) == []
    assert types(story.answer("c", "approved")) == ["attention.answered", "attention.resolved"]


def test_an_interrupted_subagents_request_is_void() -> None:
    story = Story()
    story.prompt(3)
    story.pre("a", "Agent", background=True)
    story.ask("c", agent_id="agent-1", turn_id=0)
    told = story.hook("Interrupt", turn_id=0, reason="cancelled")
    assert types(told) == ["x.interrupt", "attention.resolved"]


def test_an_abandoned_request_is_dismissed_after_a_day() -> None:
    story, _ = _asked()
    assert story.wait(24 * 3_600_000 - 1) == []
    assert types(story.wait(1)) == ["attention.resolved"]


def test_two_requests_of_one_call_have_their_own_ends() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    first = story.ask("c", id="approval_1")[0].id
    second = story.ask("c", id="approval_2")[0].id
    told = story.answer("c", "approved", id="approval_2")
    assert {event.draft.subject for event in told} == {second}
    told = story.answer("c", "rejected", id="approval_1")
    assert only(told, "attention.resolved").draft.subject == first
