"""Hooks that wait, and the book in which a process finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from handlers.client import Client
from handlers.lifecycle.gates import Opened
from state.keys import SessionKey


@dataclass(frozen=True, slots=True)
class Denied:
    """The agent is to be told no, for this reason."""

    reason: str


@dataclass(slots=True, eq=False)
class Held:
    """One hook that this process holds.

    `words` go with the decision that was last tried here. `doubt` is the option of one whose commit was not
    answered, and may stand in Redis; `ended` is how the gate ended, once that stands there. While it is
    `answering`, its holder leaves the gate to whoever answers.
    """

    key: SessionKey
    ticket: str
    until_ms: int  # by the wall clock, which everybody sees
    until: float  # by the steady clock, which never holds an agent longer
    opened: Opened | None = None
    client: Client | None = None
    words: str = ""
    doubt: str | None = None
    ended: str | None = None
    answering: bool = False
    moved: bool = False
    waker: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether its holder waits, and nothing has been said to it."""
        return self.waker is not None and not self.waker.done() and not (self.moved or self.answering)

    def wake(self, *, moved: bool = True) -> None:
        """Let the holder look: at Redis where the gate may have `moved`, else only at client and clock."""
        self.moved = self.moved or moved
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)


class HeldBook:
    """Every hook that this process holds, by ticket and by session."""

    def __init__(self) -> None:
        self._all: dict[str, Held] = {}
        self._by_session: dict[SessionKey, set[Held]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._all.values())

    def get(self, ticket: str) -> Held | None:
        """The one with this ticket."""
        return self._all.get(ticket)

    def of(self, key: SessionKey) -> Iterable[Held]:
        """Those of one session."""
        return self._by_session.get(key, ())

    def asked(self, key: SessionKey, request: str) -> Held | None:
        """The one about which the `attention.requested` of this id asks."""
        for held in self.of(key):
            if held.opened is not None and held.opened.id == request:
                return held
        return None

    def add(self, held: Held) -> None:
        """From now on it is found."""
        self._all[held.ticket] = held
        self._by_session.setdefault(held.key, set()).add(held)

    def drop(self, held: Held) -> None:
        """It is let go; dropping twice is fine."""
        self._all.pop(held.ticket, None)
        others = self._by_session.get(held.key)
        if others is not None:
            others.discard(held)
            if not others:
                del self._by_session[held.key]


def words_name(name: str) -> str:
    """Under which side value the words of the command `name` are kept."""
    return f"say:{name}"
