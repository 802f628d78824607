"""Plays captured rows through mapping and reducer, with the capture's clock and a tick when one is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from handlers.aep.capture import Posture
from handlers.lifecycle.reducer import Emitted, Tick
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from tests.lifecycle.shelf import Shelf
from tests.oracle.captures import Row

# Long enough for the longest wait of the run rule on any engine.
HORIZON_MS = 70_000


@dataclass(frozen=True, slots=True)
class Told:
    """An event, the row whose arrival told it (None: a tick), and when that was (Unix ms)."""

    session: str
    row: int | None
    at: int
    event: Emitted


@dataclass(slots=True)
class Stage:
    """Sessions as a service keeps them: encoded states, advanced by hooks and by ticks."""

    posture: Posture = field(default_factory=Posture)
    shelf: Shelf = field(default_factory=Shelf)
    told: list[Told] = field(default_factory=list)

    def play(self, rows: Iterable[Row]) -> None:
        """Let `rows` arrive in the order given."""
        for row in rows:
            if row.payload is None:
                continue
            at = int(row.at)
            self.wait(at)
            moment = map_hook(row.payload, self.posture)
            self._reduce(moment.session, moment, at, row.index)

    def wait(self, until: int) -> None:
        """Let time pass up to Unix ms `until`; the sweeper ticks whoever is due."""
        while due := self.shelf.due(until):
            self._reduce(due[1], Tick(), due[0], None)

    def _reduce(self, session: str, moment: Moment | Tick, at: int, row: int | None) -> None:
        reduction = self.shelf.take(session, at, moment)
        self.told += [Told(session, row, at, event) for event in reduction.events]
