"""The rules between events."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.aep.streams import StreamChecker

Story = list[dict[str, Any]]


def event(number: int, event_type: str, **more: Any) -> dict[str, Any]:
    made = {
        "aep": "0.1",
        "id": f"e{number}",
        "type": event_type,
        "time": "2026-11-30T16:37:13Z",
        "source": "aep://h/agent/a/session/s",
        "agent": "a",
        "session": "s",
        "seq": number,
    }
    return made | more


def problems(story: Story) -> list[str]:
    checker = StreamChecker()
    return [problem.rule for told in story for problem in checker.check(told)]


def asked(number: int, **more: Any) -> dict[str, Any]:
    data = {"kind": "permission", "prompt": "a requests permission: Bash"}
    return event(number, "attention.requested", subject="Bash", data=data | more)


def resolved(number: int, request: str) -> dict[str, Any]:
    return event(number, "attention.resolved", subject=request, data={"resolution": "answered"})


def answered(number: int, values: dict[str, Any], capture: str = "redacted") -> dict[str, Any]:
    data = {"answer": {"values": values}}
    return event(number, "attention.answered", subject="e0", data=data, capture=capture)


FORM = {
    "kind": "form",
    "prompt": "a requests form: Bash",
    "fields": [
        {"id": "name", "type": "string", "label": "name", "required": True},
        {"id": "db", "type": "select", "label": "db", "choices": [{"id": "1", "label": "1"}]},
        {"id": "free", "type": "select", "label": "free", "other": True, "choices": []},
    ],
}

FORM_ASKED = event(0, "attention.requested", subject="Bash", data=FORM)

SOUND: dict[str, Story] = {
    "gaps": [event(0, "run.started", run="r"), event(50, "run.finished", run="r")],
    "redelivery": [event(3, "run.finished", run="r")] * 2,
    "late events after the end": [event(0, "session.ended"), event(1, "progress.status")],
    "a new epoch": [event(9, "progress.status"), event(0, "progress.status", epoch=1)],
    "two emitters, one name": [
        event(5, "session.ended"),
        event(1, "session.ended", source="aep://other/agent/a"),
    ],
    "a request and its end": [asked(0), resolved(1, "e0"), event(2, "session.ended")],
    "an end of a request not seen": [resolved(1, "elsewhere")],
    "a form answered": [
        FORM_ASKED,
        answered(1, {"name": "n"}),
    ],
    "a form answered at metadata": [
        FORM_ASKED,
        answered(1, {"db": "1"}, "metadata"),
    ],
    "a free choice": [
        FORM_ASKED,
        answered(1, {"name": "n", "free": "x"}),
    ],
    "an acknowledgement": [
        event(0, "control.accepted", cause="c1"),
        event(1, "control.rejected", cause="c2", data={"reason": "busy"}),
    ],
}

BROKEN: dict[str, tuple[Story, str]] = {
    "position used twice": ([event(1, "progress.status"), event(1, "tool.denied", id="x", data={
        "tool": {"name": "t"}, "by": "policy"})], "AEP-0001 §7.2"),
    "position falls": ([event(2, "progress.status"), event(1, "progress.status")], "AEP-0001 §7.2"),
    "epoch falls": ([event(1, "progress.status", epoch=1), event(2, "progress.status")], "AEP-0001 §7.2"),
    "one id, two events": ([event(1, "progress.status"), event(2, "progress.status", id="e1")],
                           "AEP-0001 §5.1 #2"),
    "two ends of a run": ([event(1, "run.finished", run="r"), event(2, "run.cancelled", run="r")],
                          "AEP-0002 §2.5"),
    "two ends of a session": ([event(1, "session.ended"), event(2, "session.ended")], "AEP-0002 §2.5"),
    "a request outlives its session": ([asked(0), event(1, "session.ended")], "AEP-0002 §7.2"),
    "an end that names no request": ([event(1, "attention.timeout")], "AEP-0002 §7.1"),
    "two ends of a request": ([asked(0), resolved(1, "e0"), resolved(2, "e0")], "AEP-0002 §7"),
    "an answer after the end": ([asked(0), resolved(1, "e0"), answered(2, {})], "AEP-0002 §7"),
    "two decisions": ([event(0, "control.accepted", cause="c"), event(1, "control.accepted", cause="c")],
                      "AEP-0004 §3"),
    "a required answer missing": ([FORM_ASKED, answered(1, {})],
                                  "AEP-0002 §5.3"),
    "a choice not offered": ([FORM_ASKED,
                              answered(1, {"name": "n", "db": "2"})], "AEP-0002 §5.3"),
    "free text at metadata": ([FORM_ASKED,
                               answered(1, {"name": "n"}, "metadata")], "AEP-0002 §5.3"),
    "an answer to no field": ([FORM_ASKED,
                               answered(1, {"name": "n", "x": 1})], "AEP-0002 §5.3"),
    "content at metadata": ([event(0, "run.started", data={"prompt": "words"})], "AEP-0001 §8.2"),
    "content within": ([event(0, "error.raised", data={"error": {"message": "words"}})], "AEP-0001 §8.2"),
    "full at redacted": ([event(0, "tool.completed", capture="redacted", data={
        "tool": {"name": "t"}, "result": "words"})], "AEP-0001 §8.2"),
    "data at none": ([event(0, "session.ended", capture="none", data={"reason": "normal"})], "AEP-0001 §8.2"),
    "a real prompt at metadata": ([asked(0, prompt="Run `rm -rf build`?")], "AEP-0003 §9.2"),
    "a real label at metadata": ([asked(0, options=[{"id": "1", "label": "Allow"}])], "AEP-0002 §5.3"),
    "invalid alone": ([event(0, "tool.requested", data={})], "AEP-0002 §5"),
}  # fmt: skip


@pytest.mark.parametrize("story", SOUND.values(), ids=SOUND)
def test_sound(story: Story) -> None:
    assert problems(story) == []


@pytest.mark.parametrize(("story", "rule"), BROKEN.values(), ids=BROKEN)
def test_broken(story: Story, rule: str) -> None:
    assert set(problems(story)) == {rule}


def test_open_requests() -> None:
    checker = StreamChecker()
    for told in (asked(0), asked(1), resolved(2, "e0")):
        checker.check(told)
    assert checker.open_requests() == ["e1"]


@pytest.mark.parametrize("value", [None, [], "x", {}])
def test_no_event(value: Any) -> None:
    assert StreamChecker().check(value)
