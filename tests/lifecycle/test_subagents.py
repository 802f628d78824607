"""Subagents speak with the parent's voice: whose end is it? (DESIGN §4 rule 3)."""

from __future__ import annotations

import pytest

from tests.lifecycle.support import Story, types


def _spawn(story: Story, *, background: bool = False, tool: str = "Agent", call: str = "a") -> None:
    story.pre(call, tool, background=background)
    if story.engine == "new":
        if background:
            story.hook("TaskStarted", task_id=f"agent-{call}", kind="agent")
        story.turn(0, "system_trigger", origin_name="subagent")
    if background:
        story.post(call, tool)
    if story.engine != "v2":
        story.hook("SubagentStart", agent_name="coder")


def _finish(story: Story, call: str = "a") -> None:
    if story.engine != "v2":
        story.hook("SubagentStop", agent_name="coder")
    story.post(call, "Agent")


@pytest.mark.parametrize(("engine", "stops"), [("v1", 2), ("v2", 2), ("v2", 1), ("new", 1)])
def test_a_foreground_subagents_end_is_not_the_runs(engine: str, stops: int) -> None:
    story = Story(engine)
    story.prompt()
    _spawn(story)
    for _ in range(stops):
        assert types(story.hook("Stop")) == ["x.stop"]
    _finish(story)
    assert types(story.hook("Stop")) == ["run.finished"]


@pytest.mark.parametrize("engine", ["v1", "v2", "new"])
@pytest.mark.parametrize("failure_first", [True, False])
def test_a_failing_subagent_does_not_fail_the_run(engine: str, failure_first: bool) -> None:
    story = Story(engine)
    story.prompt()
    _spawn(story)
    told = story.fail("a", "Agent") if failure_first else story.hook("StopFailure")
    told += story.hook("StopFailure") if failure_first else story.fail("a", "Agent")
    assert sorted(types(told)) == ["tool.failed", "x.stop_failure"]
    assert types(story.hook("StopFailure")) == ["run.failed"]


def test_a_spawn_that_was_refused_has_no_failure_to_come() -> None:
    story = Story()
    story.prompt(0)
    story.pre("a", "Agent")
    story.fail("a", "Agent")
    assert types(story.hook("StopFailure")) == ["run.failed"]


@pytest.mark.parametrize("engine", ["v1", "v2", "new"])
def test_an_end_that_overtook_a_failing_subagents_call_is_the_runs(engine: str) -> None:
    story = Story(engine)
    story.prompt()
    _spawn(story)
    assert types(story.hook("Stop")) == ["x.stop"]
    at = story.at
    told = story.fail("a", "Agent")
    assert types(told) == ["tool.failed", "run.finished"]
    assert told[1].time_ms == at


def test_an_end_after_every_bracket_closed_is_the_runs() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story)
    story.hook("Stop")
    story.hook("SubagentStop", agent_name="coder")
    assert types(story.hook("Stop")) == ["run.finished"]
    assert types(story.post("a", "Agent")) == ["tool.completed"]


def test_a_swarm_is_many() -> None:
    story = Story("v2")
    story.prompt()
    story.pre("a", "AgentSwarm")
    for _ in range(6):
        assert types(story.hook("Stop")) == ["x.stop"]
    story.post("a", "AgentSwarm")
    assert types(story.hook("Stop", after=300)) == ["run.finished"]


def test_with_a_background_subagent_the_newest_end_is_taken_for_its_own() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    assert types(story.hook("Stop")) == []
    assert types(story.hook("SubagentStop", agent_name="coder")) == ["x.stop", "delegation.subagent.stopped"]
    assert types(story.hook("Stop")) == ["run.finished"]


def test_a_held_end_finishes_the_run_after_two_seconds_with_the_time_it_came() -> None:
    story = Story()
    begin = story.prompt(0)[0].time_ms
    _spawn(story, background=True)
    story.hook("Stop")
    at = story.at
    assert story.wait(1_999) == []
    told = story.wait(1)
    assert types(told) == ["run.finished"]
    assert told[0].time_ms == at
    assert told[0].draft.data["duration_ms"] == at - begin
    assert types(story.hook("Stop")) == ["x.stop"]


def test_a_held_end_is_told_by_the_next_event_where_no_tick_came() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    story.hook("Stop")
    assert types(story.hook("SessionHeartbeat", after=5_000)) == ["run.finished", "x.session_heartbeat"]


def test_more_ends_than_background_subagents_close_at_once() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    story.hook("Stop")
    at = story.at
    told = story.hook("Stop")
    assert types(told) == ["x.stop", "run.finished"]
    assert told[1].time_ms == at


def test_older_engines_wait_a_minute() -> None:
    story = Story("v2")
    story.prompt()
    _spawn(story, background=True)
    story.hook("Stop")
    assert story.wait(59_999) == []
    assert types(story.wait(1)) == ["run.finished"]


def test_a_failed_background_task_takes_its_failure() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    assert types(story.hook("StopFailure")) == []
    assert story.wait(5_000) == []
    fields = {"notification_type": "task.failed", "source_id": "agent-a"}
    assert types(story.hook("Notification", **fields)) == ["x.stop_failure", "progress.status"]
    assert types(story.hook("Stop")) == ["run.finished"]


def test_on_v2_of_0_28_a_completed_task_takes_two_ends() -> None:
    story = Story("v2")
    story.prompt()
    _spawn(story, background=True)
    story.hook("Stop")
    story.hook("Stop")
    told = story.hook("Notification", notification_type="task.completed", source_id="agent-a")
    assert types(told) == ["x.stop", "x.stop", "progress.status"]
    assert types(story.hook("Stop")) == ["run.finished"]


def test_a_notification_of_a_process_ends_no_subagent() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    story.hook("Notification", notification_type="task.completed", source_id="bash-x")
    assert types(story.hook("Stop")) == []


@pytest.mark.parametrize("first", ["SubagentStop", "Notification"])
def test_two_background_subagents_are_counted_by_whatever_tells(first: str) -> None:
    story = Story()
    story.prompt(0)
    for call in ("a", "b"):
        _spawn(story, background=True, call=call)
    tell = {
        "SubagentStop": {"agent_name": "coder"},
        "Notification": {"notification_type": "task.completed", "source_id": "agent-a"},
    }
    story.hook("Stop")
    story.hook(first, **tell[first])
    story.hook(*(set(tell) - {first}), **tell[(set(tell) - {first}).pop()])
    assert types(story.hook("Stop")) == [], "one of them is still at work"
    assert types(story.wait(2_000)) == ["run.finished"]


def test_an_interrupt_leaves_the_background_at_work() -> None:
    story = Story()
    story.prompt(3)
    _spawn(story, background=True)
    assert types(story.hook("Interrupt", turn_id=3, reason="cancelled")) == ["run.cancelled"]
    assert types(story.hook("Stop")) == ["x.stop"]
    assert types(story.hook("SubagentStop", agent_name="coder")) == ["delegation.subagent.stopped"]
    assert types(story.turn(4, "task")) == ["run.started", "x.turn_started"]


def test_a_new_process_of_the_vendor_has_nobody_in_the_background() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story, background=True)
    story.hook("Stop")
    story.wait(2_000)
    story.hook("SessionStart", source="resume")
    story.prompt(1)
    assert types(story.hook("Stop")) == ["run.finished"]


def test_a_foreground_subagent_that_was_sent_to_the_background() -> None:
    story = Story()
    story.prompt(0)
    _spawn(story)
    story.hook("TaskStarted", task_id="agent-a", kind="agent")
    story.post("a", "Agent")
    assert types(story.hook("Stop")) == []
    assert types(story.wait(2_000)) == ["run.finished"]


def test_a_subagent_is_caused_by_the_call_that_spawned_it() -> None:
    story = Story()
    story.prompt(0)
    spawn = story.pre("a", "Agent")[0]
    assert story.hook("SubagentStart", agent_name="coder")[0].cause == spawn.id


def test_a_swarm_in_the_background_ends_with_its_notification() -> None:
    story = Story()
    story.prompt(0)
    story.pre("s", "AgentSwarm", background=True)
    story.hook("TaskStarted", task_id="agent-s", kind="agent")
    story.post("s", "AgentSwarm")
    for _ in range(3):
        story.hook("Stop")
        assert types(story.hook("SubagentStop")) == ["x.stop", "delegation.subagent.stopped"]
    story.hook("Notification", notification_type="task.completed", source_id="agent-s")
    assert types(story.hook("Stop")) == ["run.finished"]


def test_a_second_foreground_call_outlives_the_first() -> None:
    story = Story()
    story.prompt(0)
    for call in ("a", "b"):
        _spawn(story, call=call)
    story.hook("StopFailure")
    story.fail("a", "Agent")
    assert types(story.hook("Stop")) == ["x.stop"]
    _finish(story, "b")
    assert types(story.hook("Stop")) == ["run.finished"]
