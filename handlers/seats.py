"""Where this process left each session: whether it commits there now, and its guess of how it stands.

A guess that is wrong costs one conflict and is never taken for the truth: the truth is in Redis.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from handlers.aep.envelope import source_uri
from handlers.lifecycle.state import SessionState
from handlers.submissions import Submission
from state.commits import Form
from state.keys import SessionKey

_SEATS = 4_096
_BYTES = 32 * 1024 * 1024
# Memory of a decoded state, for each of its encoded bytes.
_DECODED = 4


@dataclass(slots=True, eq=False)
class Lane:
    """A commit under way: what it carries, and what has to wait for it."""

    flying: list[Submission] = field(default_factory=list)
    queue: list[Submission] = field(default_factory=list)


class Seat:
    """One session here. The guess: `state`, decoded because reducing does not change it, `version`, `top`."""

    __slots__ = ("form", "key", "lane", "size", "source", "state", "top", "version")

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.lane: Lane | None = None
        self.state: SessionState | None = None
        self.version = ""
        self.top = 0
        self.size = 0
        self.form: Form | None = None
        self.source = source_uri(key.emitter, key.agent, key.session)


class Seats:
    """The sessions of the last commits, bounded in number and in memory."""

    def __init__(self) -> None:
        self._seats: OrderedDict[SessionKey, Seat] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, key: SessionKey) -> Seat:
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = Seat(key)
        return seat

    def keep(self, seat: Seat, state: SessionState, version: str, top: int, size: int) -> None:
        """Remember where the session stands; `size` is that of its encoded state, in bytes."""
        size *= _DECODED
        self._bytes += size - seat.size
        seat.state, seat.version, seat.top, seat.size = state, version, top, size
        self._seats.move_to_end(seat.key)
        if len(self._seats) > _SEATS or self._bytes > _BYTES:
            self._trim()

    def drop(self, seat: Seat) -> None:
        """Forget the guess."""
        self._bytes -= seat.size
        seat.state, seat.version, seat.top, seat.size = None, "", 0, 0
        self.leave(seat)

    def leave(self, seat: Seat) -> None:
        """Nothing is under way there any more: without a guess nothing remains of it."""
        if seat.lane is None and seat.state is None:
            self._seats.pop(seat.key, None)

    def clear(self) -> None:
        """Forget every guess."""
        for seat in list(self._seats.values()):
            self.drop(seat)

    def _trim(self) -> None:
        spared = 0
        while len(self._seats) > _SEATS + spared or self._bytes > _BYTES:
            key, seat = self._seats.popitem(last=False)
            if seat.lane is None:
                self.drop(seat)
                continue
            self._seats[key] = seat
            spared += 1
            if spared > len(self._seats):
                return
