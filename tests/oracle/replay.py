"""Plays captured rows through mapping and reducer, with the capture's clock and a tick when one is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from handlers.aep.capture import Posture
from handlers.aep.ulid import Mint
from handlers.lifecycle.reducer import Emitted, Input, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
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
    states: dict[str, bytes] = field(default_factory=dict)
    dues: dict[str, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    serial: int = 0

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
        while True:
            ready = [(due, session) for session, due in self.dues.items() if due <= until]
            if not ready:
                return
            due, session = min(ready)
            self._reduce(session, Tick(), due, None)

    def _reduce(self, session: str, moment: Moment | Tick, at: int, row: int | None) -> None:
        stored = self.states.get(session)
        self.serial += 1
        mint = Mint(at, self.serial.to_bytes(8, "big") + b"\0\0")
        state = None if stored is None else SessionState.decode(stored)
        reduction = reduce(state, [Input(moment, at, mint)], at)
        self.states[session] = reduction.state.encode()
        self.told += [Told(session, row, at, event) for event in reduction.events]
        due = reduction.state.due_ms
        if due is None:
            self.dues.pop(session, None)
        elif due <= at:
            raise AssertionError(f"{session} is due at {due}, and it is {at} already")
        else:
            self.dues[session] = due
