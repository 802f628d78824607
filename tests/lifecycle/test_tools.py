"""A tool call has one request and one terminal (DESIGN §4 rules 4 and 5)."""

from __future__ import annotations

from tests.lifecycle.support import Story, only, types


def test_a_call_is_paired_and_timed() -> None:
    story = Story()
    run = story.prompt(0)[0]
    request = story.pre("c")[0]
    done = story.post("c", after=250)[0]
    assert request.cause == run.id
    assert request.run == done.run == run.run
    assert done.cause == request.id
    assert done.draft.data["duration_ms"] == 250


def test_a_late_result_keeps_its_pair_and_reopens_nothing() -> None:
    story = Story()
    run = story.prompt(0)[0].run
    request = story.pre("c")[0]
    story.hook("Stop")
    late = story.post("c")[0]
    assert (late.run, late.cause) == (run, request.id)
    assert types(story.hook("Stop")) == ["x.stop"]


def test_a_failure_may_come_alone() -> None:
    story = Story()
    story.prompt(0)
    told = story.fail("c")
    assert types(told) == ["tool.failed"]
    assert "duration_ms" not in told[0].draft.data


def test_a_second_terminal_of_a_call_degrades() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.post("c")
    assert types(story.post("c")) == ["x.post_tool_use"]
    assert types(story.fail("c")) == ["x.post_tool_use_failure"]


def test_an_id_may_be_used_again_in_a_later_turn() -> None:
    story = Story("v1")
    for _ in range(2):
        story.prompt()
        story.pre("c")
        assert types(story.post("c")) == ["tool.completed"]
        assert types(story.fail("alone")) == ["tool.failed"]
        story.hook("Stop")


def test_a_failure_waits_for_the_answer_and_is_told_as_the_denial_it_is() -> None:
    story = Story()
    story.prompt(0)
    request = story.pre("c")[0]
    asked = story.ask("c")[0]
    assert story.fail("c") == []
    told = story.answer("c", "rejected")
    assert types(told) == [
        "attention.answered",
        "attention.resolved",
        "tool.denied",
        "x.post_tool_use_failure",
    ]
    denied = only(told, "tool.denied")
    assert denied.draft.data == {"tool": {"name": "Bash", "call_id": "c"}, "by": "runtime"}
    assert (denied.draft.severity, denied.draft.subject) == ("warning", "Bash")
    assert denied.cause == request.id
    assert asked.cause == request.id


def test_a_failure_after_a_denial_degrades() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.ask("c")
    assert types(story.answer("c", "rejected"))[-1] == "tool.denied"
    assert types(story.fail("c")) == ["x.post_tool_use_failure"]
    assert types(story.fail("c")) == ["x.post_tool_use_failure"]


def test_a_failure_waits_no_longer_than_a_second() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.ask("c")
    story.fail("c")
    at = story.at
    assert story.wait(999) == []
    told = story.wait(1)
    assert types(told) == ["tool.failed"]
    assert told[0].time_ms == at
    assert types(story.answer("c", "rejected")) == ["attention.answered", "attention.resolved"]


def test_a_failure_after_an_approval_is_a_failure() -> None:
    story = Story()
    story.prompt(0)
    story.pre("c")
    story.ask("c")
    story.fail("c")
    told = story.answer("c", "approved")
    assert types(told) == ["attention.answered", "attention.resolved", "tool.failed"]


def test_a_call_without_an_id_is_told_unpaired() -> None:
    story = Story()
    story.prompt(0)
    for _ in range(2):
        assert types(story.hook("PreToolUse", tool_name="Bash")) == ["tool.requested"]
        assert types(story.hook("PostToolUse", tool_name="Bash")) == ["tool.completed"]


def test_a_hook_without_a_tool_is_told_and_nothing_more() -> None:
    story = Story()
    story.prompt(0)
    assert types(story.hook("PreToolUse", tool_call_id="c")) == ["x.pre_tool_use"]
    assert types(story.hook("PostToolUse", tool_call_id="c")) == ["x.post_tool_use"]
    assert story.state is not None
    assert not story.state.calls
    assert not story.state.told


def test_forgotten_calls_are_unpaired_never_made_up() -> None:
    story = Story()
    story.prompt(0)
    for number in range(400):
        story.pre(f"call_{number}")
    first, last = story.post("call_0")[0], story.post("call_399")[0]
    assert "duration_ms" not in first.draft.data
    assert "duration_ms" in last.draft.data


def _busy(calls: int) -> Story:
    story = Story()
    story.prompt(0)
    for number in range(calls):
        story.pre(f"call_{number}")
        story.post(f"call_{number}")
    return story


def test_a_repeated_terminal_is_known_again_long_after() -> None:
    story = _busy(150)
    assert types(story.post("call_0")) == ["x.post_tool_use"]
    assert types(story.fail("call_100")) == ["x.post_tool_use_failure"]
    story.ask("call_1")
    assert types(story.answer("call_1", "rejected")) == ["attention.answered", "attention.resolved"]
    story.hook("Stop")
    assert types(story.post("call_0")) == ["x.post_tool_use"]
    story.prompt(1)
    assert types(story.fail("call_2")) == ["tool.failed"], "the id may be another call's in another run"


def test_a_denied_call_is_remembered_until_its_failure_comes() -> None:
    story = Story()
    story.prompt(0)
    story.pre("denied")
    story.ask("denied")
    story.answer("denied", "rejected")
    for number in range(100):
        story.pre(f"call_{number}")
        story.post(f"call_{number}")
    story.hook("Stop")
    story.prompt(1)
    assert types(story.fail("denied")) == ["x.post_tool_use_failure"]


def test_what_is_remembered_of_many_calls_is_little() -> None:
    story = _busy(2_000)
    assert story.state is not None
    assert len(story.state.encode()) < 2 * 1024 + 512
    assert types(story.post("call_0")) == ["tool.completed"]
    assert types(story.post("call_1999")) == ["x.post_tool_use"]
