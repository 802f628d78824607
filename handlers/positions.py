"""Resume positions: `(session, epoch, seq)`, and the two ways consumers write them (AEP-0003 §3.3, §7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from handlers.aep.levels import JSONValue
from handlers.errors import InvalidPosition, TooManyPositions

_MAX = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """The last thing a consumer has of a session; what it wants comes strictly after."""

    session: str
    epoch: int
    seq: int


Resume = Literal["all"] | tuple[Position, ...]


def parse_resume(value: JSONValue, limit: int) -> Resume:
    """A `from` member: the word `all` or an array of positions.

    Raises `InvalidPosition`, or `TooManyPositions` for more than `limit`.
    """
    if value == "all":
        return "all"
    if not isinstance(value, list):
        raise InvalidPosition('from: expected an array of positions or "all"')
    if len(value) > limit:
        raise TooManyPositions(f"from: {len(value)} positions are more than AEP_MAX_FROM ({limit})")
    return earliest(_position(entry) for entry in value)


def parse_event_id(text: str) -> Position | None:
    """A `Last-Event-ID`, `{session}:{epoch}:{seq}`; None when it is not one of ours."""
    session, _, rest = text.rpartition(":")
    session, _, epoch = session.rpartition(":")
    if not session or not (rest.isascii() and rest.isdigit() and epoch.isascii() and epoch.isdigit()):
        return None
    if len(rest) > 16 or len(epoch) > 16:
        return None
    return Position(session, int(epoch), int(rest))


def event_id(session: str, epoch: int, seq: int) -> str | None:
    """The SSE `id:` of a position; None when the session's name would break the line."""
    if any(character in session for character in "\r\n\0"):
        return None
    return f"{session}:{epoch}:{seq}"


def earliest(positions: Iterable[Position]) -> tuple[Position, ...]:
    """One position a session, the earliest asked one, in the order of first mention."""
    found: dict[str, Position] = {}
    for position in positions:
        known = found.get(position.session)
        if known is None or (position.epoch, position.seq) < (known.epoch, known.seq):
            found[position.session] = position
    return tuple(found.values())


def _position(value: JSONValue) -> Position:
    if not isinstance(value, dict):
        raise InvalidPosition("from: a position is an object of session, epoch and seq")
    session, epoch, seq = value.get("session"), value.get("epoch", 0), value.get("seq")
    if not isinstance(session, str) or not session:
        raise InvalidPosition("from: session must be a non-empty string")
    for name, number in (("epoch", epoch), ("seq", seq)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX:
            raise InvalidPosition(f"from: {name} must be a whole number from 0")
    assert isinstance(epoch, int)
    assert isinstance(seq, int)
    return Position(session, epoch, seq)
