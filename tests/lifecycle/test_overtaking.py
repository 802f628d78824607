"""The main agent's end was taken for a subagent's, because news of the subagent was late.

Subagents tell that they are done without being waited for, so the main agent's `Stop`, which is waited
for, may come before. An end that nobody cancelled or failed is then still told as what it was.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.lifecycle.support import Story, types

ENDS = ("run.finished", "run.failed", "run.cancelled")


def _working(engine: str, *, background: bool = False, tool: str = "Agent") -> Story:
    story = Story(engine)
    story.hook("SessionStart", source="startup")
    story.prompt(0 if engine == "new" else None)
    story.pre("a", tool, background=background)
    if background:
        story.post("a", tool)
    if engine != "v2":
        story.hook("SubagentStart", agent_name="coder")
    return story


def _late(story: Story, event: str) -> None:
    if event == "PostToolUse":
        story.post("a", "Agent")
    elif event == "Notification":
        story.hook(event, notification_type="task.completed", source_id="agent-a")
    else:
        story.hook(event, agent_name="coder")


def _ends(story: Story) -> list[tuple[str, int]]:
    return [(event.draft.type, event.time_ms) for event in story.events if event.draft.type in ENDS]


@pytest.mark.parametrize("boundary", ["UserPromptSubmit", "SessionEnd"])
@pytest.mark.parametrize("engine", ["v1", "v2", "new"])
@pytest.mark.parametrize("after", [10, 3_000])
@pytest.mark.parametrize("late", [(), *permutations(["SubagentStop", "PostToolUse"])], ids=str)
def test_a_stop_before_the_news_of_a_foreground_subagent_finishes_the_run(
    engine: str, boundary: str, after: int, late: tuple[str, ...]
) -> None:
    story = _working(engine)
    story.hook("Stop")
    story.hook("Stop", after=400)
    at = story.at
    for event in late:
        if event != "SubagentStop" or engine != "v2":
            story.at += after
            _late(story, event)
    story.hook(boundary)
    story.wait(1_000)
    assert _ends(story) == [("run.finished", at)]


@pytest.mark.parametrize("late", [["SubagentStop"], ["PostToolUse"]])
def test_where_a_subagent_stops_once_a_second_stop_ends_the_run_without_a_boundary(late: list[str]) -> None:
    story = _working("new")
    story.hook("Stop")
    story.hook("Stop")
    at = story.at
    _late(story, late[0])
    assert _ends(story) == [("run.finished", at)]


@pytest.mark.parametrize("late", list(permutations(["SubagentStop", "Notification"])), ids=str)
def test_a_background_subagent_that_stopped_once_leaves_the_run_its_stop(late: tuple[str, ...]) -> None:
    story = _working("v1", background=True)
    story.hook("Stop")
    at = story.at
    story.hook("Stop")
    for event in late:
        _late(story, event)
    story.hook("SessionEnd", reason="exit")
    story.wait(1_000)
    assert _ends(story) == [("run.finished", at)]


def test_a_failure_before_the_news_of_a_subagent_that_succeeded_is_the_runs() -> None:
    story = _working("v1")
    story.hook("Stop")
    story.hook("StopFailure", error_type="E", error_message="no")
    at = story.at
    story.post("a", "Agent", after=1_000)
    assert _ends(story) == [("run.failed", at)]


@pytest.mark.parametrize("engine", ["v1", "v2"])
def test_a_background_subagents_failure_may_come_after_the_word_of_it(engine: str) -> None:
    story = _working(engine, background=True)
    story.hook("Notification", notification_type="task.failed", source_id="agent-a")
    assert types(story.hook("StopFailure", error_message="no")) == ["x.stop_failure"]
    assert types(story.hook("StopFailure", error_message="no")) == ["run.failed"]


def test_a_swarm_of_unknown_size_leaves_the_run_its_stop() -> None:
    story = _working("v2", tool="AgentSwarm")
    for _ in range(3):
        story.hook("Stop")
    at = story.at
    story.post("a", "AgentSwarm")
    story.prompt()
    assert _ends(story) == [("run.finished", at)]


def test_a_background_stop_that_was_told_is_not_taken_from_the_next_run() -> None:
    story = _working("new", background=True)
    story.hook("Stop")
    assert types(story.hook("Stop")) == ["x.stop", "run.finished"]
    story.hook("Stop")
    _late(story, "SubagentStop")
    assert types(story.turn(1, "task")) == ["run.started", "run.finished", "x.turn_started"]


@pytest.mark.parametrize("engine", ["v1", "v2"])
def test_what_was_cancelled_stays_cancelled(engine: str) -> None:
    story = _working(engine)
    story.hook("Stop")
    story.hook("Stop")
    story.post("a", "Agent")
    story.hook("SessionEnd", reason="exit")
    assert types(story.hook("Interrupt", turn_id=3, reason="cancelled"))[0] == "run.cancelled"
    story.wait(1_000)
    assert len(_ends(story)) == 1


def test_a_main_agent_that_went_on_to_work_had_not_stopped() -> None:
    story = _working("v1")
    story.hook("Stop")
    story.hook("Stop")
    story.post("a", "Agent")
    story.pre("b")
    story.post("b")
    story.prompt()
    assert [end for end, _ in _ends(story)] == ["run.cancelled"]


def test_a_process_that_was_killed_told_no_end() -> None:
    story = _working("v1")
    story.hook("Stop")
    story.hook("Stop")
    story.post("a", "Agent")
    story.hook("SessionStart", source="resume")
    story.prompt()
    assert [end for end, _ in _ends(story)] == ["run.cancelled"]
