"""The state of one session: what the reducer must remember between two events, and nothing more.

It is stored as one JSON array (fields in order, schema version first) of at most `LIMIT` bytes: open
calls are forgotten first, oldest first, and are unpaired from then on, never invented. It holds ids,
times and machine words; content only inside a kept draft, at most `KEPT` bytes of it, at the capture
level the draft already had. Commit ids and versions are the storage's own business, not ours.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from handlers.errors import InvalidState
from handlers.lifecycle import past
from handlers.lifecycle.bounds import BEGUN, CALLS, CLOSED, FORMS, KEPT, LIMIT, PAST, REQUESTS, TOLD
from handlers.lifecycle.entries import (
    Acp,
    Call,
    Crew,
    Ending,
    Failure,
    Gate,
    Queued,
    Request,
    Result,
    Run,
    Told,
    Web,
)

SCHEMA = 1

_ROOM = LIMIT - 4 * 1024
_FEW = 24

Engine = Literal["", "v1", "v2", "new"]


class SessionState(Struct, array_like=True):
    """Everything remembered of one session. `last_seq` is the position of its last event."""

    schema: int = SCHEMA
    last_seq: int = -1
    ended: bool = False
    engine: Engine = ""
    started: str | None = None  # id of its `session.started`, where one was seen
    started_at: int | None = None  # Unix ms, only where the session began there
    runs: int = 0
    run: Run | None = None
    closed_at: int = 0  # Unix ms of the last end of a run
    strays: list[int] = []  # Unix ms of `Stop`s that closed nothing
    turn: int | None = None  # the highest main turn seen
    crew: Crew = msgspec.field(default_factory=Crew)
    calls: dict[str, Call] = {}
    told: dict[str, Told] = {}
    failures: dict[str, Failure] = {}
    requests: dict[str, Request] = {}
    results: dict[str, Result] = {}
    ending: Ending | None = None
    bare: bool = False  # the posture of the last event lets no data ride, not even ours
    due_ms: int | None = None  # Unix ms at which the state wants a tick
    gates: dict[str, Gate] = {}  # by ticket
    closed: dict[str, str] = {}  # id of a gate's request → how it ended
    queue: list[Queued] = []
    given: list[Queued] = []  # the instructions of the last prompts, which may come back
    over: bool = False  # it ended, and has not been resumed since
    cursors: dict[str, int] = {}  # numbered streams, the one that moved last at the end → last number taken
    web: Web = msgspec.field(default_factory=Web)
    acp: Acp | None = None
    past: str = ""  # digests of calls that had their terminal before those of `told`; see `past.py`

    def encode(self) -> bytes:
        """The state as JSON, at most `LIMIT` bytes."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> SessionState:
        """Read what `encode` wrote. Raises InvalidState for anything else, other schemas included."""
        try:
            state = _DECODER.decode(encoded)
        except msgspec.MsgspecError as error:
            raise InvalidState(f"not a session state: {error}") from error
        if state.schema != SCHEMA:
            raise InvalidState(f"session state of schema {state.schema}, this version reads {SCHEMA}")
        return state

    @classmethod
    def tombstone(cls, last_seq: int) -> SessionState:
        """What is left when the state of an ended session has expired: it ended, and where it stood."""
        return cls(last_seq=last_seq, ended=True, over=True)

    @property
    def waits(self) -> bool:
        """Whether there is anything in it that time could decide."""
        run = self.run
        return bool(
            self.requests
            or self.gates
            or self.results
            or self.failures
            or self.queue
            or self.ending
            or self.web.orders
            or (run is not None and (run.held or run.interrupt))
        )

    def copy(self) -> SessionState:
        """A copy that can be changed without changing this one; entries are shared, they never change."""
        run, crew = self.run, self.crew
        if run is not None:
            run = Run(
                run.id,
                run.started,
                run.at,
                run.turn,
                run.owes,
                run.queued,
                list(run.held),
                run.interrupt,
                list(run.doubts),
            )
        return SessionState(
            self.schema,
            self.last_seq,
            self.ended,
            self.engine,
            self.started,
            self.started_at,
            self.runs,
            run,
            self.closed_at,
            list(self.strays),
            self.turn,
            Crew(
                list(crew.foreground),
                crew.subagents,
                crew.begun,
                crew.open,
                crew.stops,
                crew.failures,
                crew.unused,
                crew.failing,
                list(crew.background),
                crew.anonymous,
                crew.named,
                crew.brackets,
            ),
            self.calls.copy(),
            self.told.copy(),
            self.failures.copy(),
            self.requests.copy(),
            self.results.copy(),
            self.ending,
            self.bare,
            self.due_ms,
            self.gates.copy(),
            self.closed.copy(),
            list(self.queue),
            list(self.given),
            self.over,
            self.cursors.copy(),
            self.web.copy(),
            None if self.acp is None else self.acp.copy(),
            self.past,
        )

    def bound(self) -> None:
        """Forget the oldest of what only serves pairing, until the state fits its limits."""
        while len(self.told) > TOLD:
            # A denied call whose failure is still to come says more than its digest could.
            call = next((name for name, told in self.told.items() if not told.owed), next(iter(self.told)))
            self.past = past.added(self.past, self.told.pop(call).run, call, PAST)
        web = self.web
        if len(self.closed) > CLOSED:
            forget(self.closed, CLOSED)
        if len(web.begun) > BEGUN:
            forget(web.begun, BEGUN)
        if web.forms or web.asks:
            forget(web.forms, FORMS)
            forget(web.asks, REQUESTS)
        if len(self.calls) <= _FEW and not (self.waits or self.given or web.forms or web.asks or self.acp):
            # Whatever else there is, its own limits keep it far below the whole.
            return
        forget(self.calls, CALLS)
        if 360 * len(self.calls) + 110 * len(self.told) + self._waiting_bytes() > _ROOM:
            while (self.calls or self.told) and len(self.encode()) > _ROOM:
                forget(self.calls or self.told, len(self.calls or self.told) * 7 // 8)

    def _waiting_bytes(self) -> int:
        """No less than what everything else but calls takes."""
        waiting = len(self.results) + len(self.failures) + 1
        if self.run is not None:
            waiting += len(self.run.held) + len(self.run.doubts) + 1
        spawns = len(self.crew.foreground) + len(self.crew.background)
        held = (
            len(self.past)
            + 700 * len(self.gates)
            + 50 * len(self.closed)
            + 180 * (len(self.queue) + len(self.given))
        )
        held += 90 * len(self.cursors) + 110 * len(self.web.begun) + KEPT * 2 * len(self.web.forms)
        held += 120 * len(self.web.asks) + 520 * len(self.web.orders) + 60 * len(self.web.acked)
        if self.acp is not None:
            held += 250 * len(self.acp.turns) + KEPT * 2 * len(self.acp.prompts)
        return 1_000 + 310 * len(self.requests) + 4 * KEPT * waiting + 180 * spawns + held


def forget(table: dict[str, Any], limit: int) -> None:
    """Drop the oldest entries of `table` down to `limit`."""
    while len(table) > limit:
        del table[next(iter(table))]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(SessionState)
