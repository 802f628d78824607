"""When a run begins and ends (DESIGN §4 rules 1 and 2)."""

from __future__ import annotations

import pytest

from tests.lifecycle.support import Story, only, types


def test_a_prompt_opens_a_run_and_stop_finishes_it() -> None:
    story = Story()
    started = only(story.prompt(), "run.started")
    story.turn(0)
    finished = only(story.hook("Stop", after=500), "run.finished")
    assert started.run is not None
    assert finished.run == started.run
    assert finished.cause == started.id
    assert finished.draft.data == {"duration_ms": 510}


@pytest.mark.parametrize(
    ("event", "fields", "terminal", "data"),
    [
        ("Stop", {}, "run.finished", {}),
        (
            "StopFailure",
            {"error_type": "APIStatusError"},
            "run.failed",
            {"reason": "APIStatusError", "error": {"type": "APIStatusError"}},
        ),
        ("Interrupt", {"reason": "cancelled"}, "run.cancelled", {"by": "user"}),
    ],
)
@pytest.mark.parametrize("engine", ["v1", "v2", "new"])
def test_each_end_has_its_terminal(
    engine: str, event: str, fields: dict[str, str], terminal: str, data: dict[str, object]
) -> None:
    story = Story(engine)
    story.prompt()
    told = story.hook(event, **fields)
    assert types(told) == [terminal]
    assert told[0].draft.data == {**data, "duration_ms": 10}


@pytest.mark.parametrize("event", ["Stop", "StopFailure", "Interrupt"])
def test_an_end_without_a_run_degrades_and_makes_up_none(event: str) -> None:
    story = Story()
    before = story.hook(event)
    story.prompt()
    story.hook("Stop")
    after = story.hook(event)
    assert types(before) == types(after) == ["x." + {"StopFailure": "stop_failure"}.get(event, event.lower())]
    assert before[0].run is after[0].run is None


def test_a_steer_never_opens_a_run() -> None:
    story = Story()
    assert types(story.prompt(is_steer=True)) == ["x.kimi-code.run.steer_submitted"]
    run = story.prompt(0)[0].run
    assert story.prompt(is_steer=True)[0].run == run


def test_a_run_left_open_is_cancelled_at_the_next_prompt_and_claims_nothing() -> None:
    story = Story("v1")
    first = story.prompt()[0]
    told = story.prompt()
    assert types(told) == ["run.cancelled", "run.started"]
    assert told[0].run == first.run
    assert told[0].draft.data == {}
    assert told[1].run != first.run


def test_a_queued_prompt_says_that_the_run_before_it_finished() -> None:
    story = Story()
    story.prompt(0)
    story.hook("UserPromptQueued", queue_length=1)
    assert types(story.prompt(1)) == ["run.finished", "run.started", "x.turn_started"]


@pytest.mark.parametrize(
    ("origin", "trigger"), [("task", "agent"), ("cron_job", "schedule"), ("goal", "agent")]
)
def test_a_turn_that_no_prompt_announced_opens_a_run(origin: str, trigger: str) -> None:
    story = Story()
    story.prompt(0)
    story.hook("Stop")
    told = story.turn(1, origin)
    assert types(told) == ["run.started", "x.turn_started"]
    assert told[0].draft.data == {"trigger": trigger}
    assert types(story.hook("Stop")) == ["run.finished"]


def test_a_turn_by_itself_says_that_the_open_run_finished() -> None:
    story = Story()
    story.prompt(0)
    assert types(story.turn(1, "task")) == ["run.finished", "run.started", "x.turn_started"]


def test_a_users_turn_never_opens_a_run() -> None:
    story = Story()
    assert types(story.turn(0)) == ["x.turn_started"]


def test_a_subagents_turn_changes_nothing() -> None:
    story = Story()
    story.prompt(3)
    assert types(story.turn(0, "system_trigger", origin_name="subagent")) == ["x.turn_started"]
    assert types(story.hook("Interrupt", turn_id=3, reason="cancelled")) == ["run.cancelled"]


def test_a_late_turn_start_is_ignored() -> None:
    story = Story()
    story.prompt(4)
    story.hook("Stop")
    assert types(story.turn(4, "task")) == ["x.turn_started"]
    assert types(story.turn(3, "task")) == ["x.turn_started"]


def test_a_turn_start_after_its_own_stop_opens_and_finishes_at_once() -> None:
    story = Story()
    story.prompt(0)
    story.hook("Stop")
    assert types(story.hook("Stop", after=900)) == ["x.stop"]
    assert types(story.turn(1, "task")) == ["run.started", "run.finished", "x.turn_started"]
    assert types(story.turn(2, "task", after=2_500)) == ["run.started", "x.turn_started"]


def test_an_interrupt_of_another_turn_is_not_the_runs() -> None:
    story = Story()
    story.prompt(7)
    assert types(story.hook("Interrupt", turn_id=2, reason="cancelled")) == ["x.interrupt"]
    assert types(story.hook("Interrupt", turn_id=7, reason="cancelled")) == ["run.cancelled"]


@pytest.mark.parametrize("engine", ["v1", "v2"])
def test_of_two_interrupts_the_second_is_the_main_agents(engine: str) -> None:
    story = Story(engine)
    story.prompt()
    story.pre("a", "Agent")
    story.hook("SubagentStart", agent_name="coder")
    assert types(story.hook("Interrupt", turn_id=0, reason="cancelled")) == []
    told = story.hook("Interrupt", turn_id=1, reason="cancelled")
    assert types(told) == ["x.interrupt", "run.cancelled"]
    assert [event.time_ms for event in told] == [story.at - 10, story.at]


def test_a_single_doubtful_interrupt_cancels_after_a_second() -> None:
    story = Story("v1")
    story.prompt()
    story.pre("a", "Agent")
    story.hook("Interrupt", turn_id=0, reason="cancelled")
    at = story.at
    assert story.wait(999) == []
    told = story.wait(1)
    assert types(told) == ["run.cancelled"]
    assert told[0].time_ms == at
    assert told[0].draft.data["by"] == "user"


def test_run_ids_are_plain_and_differ() -> None:
    story = Story()
    ids = {story.prompt()[-1].run for _ in range(5)}
    assert len(ids) == 5
    assert all(run is not None and run.replace("_", "").isalnum() for run in ids)
