"""Resume positions, as consumers write them."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.errors import InvalidPosition, TooManyPositions
from handlers.positions import Position, event_id, parse_event_id, parse_resume


def test_positions_are_read() -> None:
    assert parse_resume("all", 1) == "all"
    asked: Any = [{"session": "a", "epoch": 1, "seq": 5}, {"session": "b", "seq": 0}]
    assert parse_resume(asked, 2) == (Position("a", 1, 5), Position("b", 0, 0))


def test_of_two_for_one_session_the_earlier_counts() -> None:
    asked: Any = [{"session": "a", "seq": 5}, {"session": "a", "seq": 3}]
    assert parse_resume(asked, 2) == (Position("a", 0, 3),)


@pytest.mark.parametrize(
    "value",
    [
        {},
        "none",
        1,
        None,
        [1],
        [{}],
        [{"session": "", "seq": 1}],
        [{"session": "a"}],
        [{"session": "a", "seq": -1}],
        [{"session": "a", "seq": True}],
        [{"session": "a", "seq": 1.5}],
        [{"session": 1, "seq": 1}],
        [{"session": "a", "seq": 1, "epoch": "0"}],
        [{"session": "a", "seq": 2**53}],
    ],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPosition):
        parse_resume(value, 10)


def test_too_many_are_refused() -> None:
    with pytest.raises(TooManyPositions):
        parse_resume([{"session": str(n), "seq": 0} for n in range(3)], 2)


@pytest.mark.parametrize("session", ["a", "with:colons:1:2", "ünï", "s p a c e"])
def test_an_event_id_comes_back(session: str) -> None:
    text = event_id(session, 3, 17)
    assert text is not None
    assert parse_event_id(text) == Position(session, 3, 17)


@pytest.mark.parametrize("session", ["a\nb", "a\rb", "a\0b"])
def test_a_name_that_would_break_the_stream_gets_no_id(session: str) -> None:
    assert event_id(session, 0, 1) is None


@pytest.mark.parametrize("text", ["", "a", "a:1", ":1:2", "a:x:1", "a:1:-1", "a:1:²", f"a:0:{'9' * 20}"])
def test_a_foreign_event_id_is_ignored(text: str) -> None:
    assert parse_event_id(text) is None
