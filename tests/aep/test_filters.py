"""The filter dialect: what matches, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.filters import parse_filter
from handlers.errors import InvalidFilter

EVENT: dict[str, Any] = {
    "aep": "0.1",
    "id": "1",
    "type": "x.kimi-code.web.turn.started",
    "agent": "kimi-code",
    "session": "s",
    "seq": 3,
    "acmecount": 1,
    "acmeflag": True,
    "acmeratio": 1.0,
}


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"type": "x.kimi-code.*"}, True),
        ({"type": ["tool.*", "x.kimi-code.web.turn.*"]}, True),
        ({"type": "x.kimi-code.web.turn.started.*"}, False),
        ({"type": "x.kimi.*"}, False),
        ({"acmecount": 1}, True),
        ({"acmecount": 1.0}, True),
        ({"acmecount": True}, False),
        ({"acmecount": "1"}, False),
        ({"acmeflag": True}, True),
        ({"acmeflag": 1}, False),
        ({"acmeratio": 1}, True),
        ({"acmeother": False}, False),
        ({"severity": "info"}, True),
        ({"capture": ["redacted", "metadata"]}, True),
        ({"epoch": 0}, True),
        ({"epoch": [1, 2]}, False),
        ({"severity": {"lte": "info"}}, True),
        ({"severity": {"gte": "error", "lte": "info"}}, False),
        ({"session": ["a", "s"], "agent": "codex"}, False),
        ({"session": 5}, False),
    ],
)
def test_matching(wanted: Any, matches: bool) -> None:
    assert parse_filter(wanted).matches(EVENT) is matches


@pytest.mark.parametrize(
    "wanted",
    [
        None,
        [],
        "type",
        {"": "x"},
        {"a" * 21: "x"},
        {"sévérité": "x"},
        {"type": None},
        {"type": [["a"]]},
        {"type": ["a", None]},
        {"type": "tool*"},
        {"type": "*.requested"},
        {"type": "x.*.foo"},
        {"type": ".*"},
        {"type": "tool.*.*"},
        {"session": "s*"},
        {"severity": {}},
        {"severity": {"gte": "fatal"}},
        {"severity": {"gte": 3}},
        {"severity": {"gte": ["info"]}},
        {"severity": {"gte": "info", "x": "info"}},
        {"agent": {"gte": "info"}},
        {"acmeratio": 1.5},
    ],
)
def test_refused(wanted: Any) -> None:
    with pytest.raises(InvalidFilter):
        parse_filter(wanted)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*EVENT, "severity", "capture", "epoch", "run", "time", "data"]) | st.text(max_size=22)


@given(st.dictionaries(KEYS, JSON, max_size=3) | JSON, st.dictionaries(KEYS, JSON, max_size=5))
def test_any_filter_is_refused_or_answers_for_any_event(wanted: Any, event: dict[str, Any]) -> None:
    try:
        parsed = parse_filter(wanted)
    except InvalidFilter:
        return
    assert parsed.matches(event) in (True, False)


@given(st.dictionaries(st.sampled_from(["agent", "session", "run"]), st.text(max_size=3), max_size=3))
def test_an_event_matches_its_own_attributes(attributes: dict[str, Any]) -> None:
    if not any("*" in value for value in attributes.values()):
        assert parse_filter(attributes).matches({**EVENT, **attributes})
