"""Which events are valid, and what is said about those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.registry import TYPES, scope_of
from handlers.aep.validation import Problem, check_event, check_payload, is_time
from tests.aep.payloads import payloads

EVENT: dict[str, Any] = {
    "aep": "0.1",
    "id": "1",
    "type": "tool.requested",
    "time": "2026-11-30T16:37:13.123Z",
    "source": "aep://h/agent/kimi-code/session/s",
    "agent": "kimi-code",
    "session": "s",
    "seq": 3,
    "data": {"tool": {"name": "Bash"}},
}


def test_a_valid_event() -> None:
    assert check_event(EVENT) == []
    assert check_event({**EVENT, "acmeregion": "eu", "acmecount": 1, "acmeflag": True}) == []
    assert check_event({**EVENT, "seq": 3.0, "epoch": 0, "severity": "debug", "capture": "full"}) == []


@pytest.mark.parametrize("name", ["aep", "id", "type", "time", "source", "agent", "session", "seq"])
def test_missing(name: str) -> None:
    assert [problem.path for problem in check_event({k: v for k, v in EVENT.items() if k != name})] == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in EVENT for value in (None, [], True, 1.5)),
        *(
            (name, "")
            for name in ("id", "type", "subject", "time", "source", "agent", "session", "run", "step")
        ),
        ("aep", "0.2"),
        ("aep", 0.1),
        ("cause", ""),
        ("seq", -1),
        ("seq", "3"),
        ("epoch", -1),
        ("type", "tool.requested\n"),
        ("severity", "fatal"),
        ("severity", None),
        ("capture", "secret"),
        ("traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        ("time", "2026-11-30"),
        ("source", "no scheme"),
        ("source", "a: b"),
        ("acme_ext", "x"),
        ("Acme", "x"),
        ("", "x"),
        ("acmeobj", {}),
        ("acmenull", None),
        ("acmeratio", 1.5),
        ("data", {}),
        ("data", {"tool": "Bash"}),
        ("data", {"tool": {}}),
        ("data", {"tool": {"name": 5}}),
    ],
)
def test_wrong(name: str, value: Any) -> None:
    problems = check_event({**EVENT, name: value})
    assert problems
    assert any(problem.path.startswith(name[:40]) for problem in problems)


@pytest.mark.parametrize("event", [None, [], "x", 5])
def test_no_object(event: Any) -> None:
    assert check_event(event) == [Problem("AEP-0001 §5", "", "an event is a JSON object")]


@pytest.mark.parametrize(
    ("event_type", "allowed", "refused"),
    [
        ("agent.heartbeat", set(), {"session", "run", "step", "seq"}),
        ("control.pause", {"session"}, {"seq"}),
        ("attention.routed", {"session"}, {"seq"}),
        ("x.acme.control.instruct", {"session"}, {"seq"}),
        ("x.acme.agent.seen", {"session", "seq"}, set()),
        ("control.accepted", {"session", "seq"}, set()),
    ],
)
def test_scopes(event_type: str, allowed: set[str], refused: set[str]) -> None:
    bare = {name: EVENT[name] for name in ("aep", "id", "time", "source", "agent")} | {"type": event_type}
    given_ = {"session": "s", "seq": 1, "run": "r", "step": "t"}
    assert check_event(bare | {name: given_[name] for name in allowed}) == []
    for name in refused:
        assert check_event(bare | {name: given_[name] for name in allowed | {name}})
    for name in allowed:
        assert check_event(bare | {name: given_[name] for name in allowed - {name}})


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T16:37:13Z",
        "2026-11-30t16:37:13.5z",
        "2026-11-30 16:37:13+23:59",
        "2024-02-29T00:00:00.123456789-00:00",
        "2016-12-31T23:59:60Z",
    ],
)
def test_times(text: str) -> None:
    assert is_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-30T16:37:13",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T16:37:61Z",
        "2026-11-30T16:37Z",
        "2026-11-30T16:37:13.Z",
        "2026-11-30T16:37:13+24:00",
        "２０２６-11-30T16:37:13Z",
        " 2026-11-30T16:37:13Z",
        "2026-11-30T16:37:13Z\n",
    ],
)
def test_no_times(text: str) -> None:
    assert not is_time(text)


def test_a_problem_reads_as_a_sentence() -> None:
    assert str(Problem("AEP-0001 §6", "type", "is not legal")) == "type: is not legal (AEP-0001 §6)"
    assert str(Problem("AEP-0001 §5", "", "no object")) == "no object (AEP-0001 §5)"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), True, "1", -1, 101])
def test_numbers_that_json_cannot_carry_or_the_field_does_not_allow(value: Any) -> None:
    assert check_payload("progress.status", {"percent": value})


@given(st.data(), st.sampled_from(sorted(TYPES)))
def test_every_made_payload_is_valid(data: st.DataObject, event_type: str) -> None:
    payload = data.draw(payloads(event_type))
    assert check_payload(event_type, payload) == []
    event = {**EVENT, "type": event_type, "data": payload}
    if scope_of(event_type) != "session":
        del event["seq"]
    if scope_of(event_type) == "agent":
        del event["session"]
    assert check_event(event) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(EVENT)) | st.text(max_size=5), JSON, max_size=6) | JSON)
def test_any_json_gets_an_answer(event: Any) -> None:
    assert all(str(problem) for problem in check_event(event))
    if isinstance(event, dict):
        check_event({**EVENT, **event})
