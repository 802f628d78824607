"""The pen of the reducer: it holds the state being changed and writes events into the session's order."""

from __future__ import annotations

from msgspec import Struct

from handlers.aep.envelope import position
from handlers.aep.ulid import Mint
from handlers.lifecycle.state import SessionState
from handlers.mapping.moments import Draft


class Emitted(Struct, frozen=True):
    """An event with its identity, ready to be finished to bytes. `time_ms` is Unix milliseconds."""

    draft: Draft
    id: str
    seq: int
    time_ms: int
    run: str | None
    cause: str | None


class Writer:
    """One reduction under way.

    `now` is the clock of positions, `at` the time of the input being reduced, both Unix milliseconds;
    `mint` makes the ids of what that input tells; `acks` are the acknowledgements among the events, by the
    name under which each is recorded.
    """

    __slots__ = ("acks", "at", "events", "mint", "now", "state")

    def __init__(self, state: SessionState, now_ms: int) -> None:
        self.state = state
        self.events: list[Emitted] = []
        self.acks: list[tuple[str, str]] = []
        self.now = now_ms
        self.at = now_ms
        self.mint: Mint

    def emit(
        self, draft: Draft, *, run: str | None = None, cause: str | None = None, at: int | None = None
    ) -> str:
        """Write an event at the next position; `at` is its time when that is not now. Returns its id."""
        state = self.state
        seq = position(state.last_seq, self.now)
        state.last_seq = seq
        event_id = self.mint.next()
        self.events.append(Emitted(draft, event_id, seq, self.at if at is None else at, run, cause))
        return event_id

    def remark(self, draft: Draft, *, at: int | None = None) -> str:
        """Write an event that is merely something that happened, in the open run if there is one."""
        run = self.state.run
        if run is None:
            return self.emit(draft, at=at)
        return self.emit(draft, run=run.id, cause=run.started, at=at)
