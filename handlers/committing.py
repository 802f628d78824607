"""From the truth in Redis to a commit that stands: reduce, send, and again on the state that won.

The ids of the events come from each input's own mint, and a batch keeps its commit id through all tries, so
that a reply lost on the way back never doubles an event.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from handlers.aep.envelope import finish
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.errors import NewerState
from handlers.lifecycle import versions
from handlers.lifecycle.reducer import Emitted, Input, Reduction, reduce
from handlers.lifecycle.state import SessionState
from handlers.seats import Seat, Seats
from handlers.submissions import Submission, Try, ack_name
from state.errors import Refused, Unanswered, Unreachable
from state.gates import mark, unmark
from state.keys import SessionKey
from state.sessions import DAY_MS, Committed, Conflict, Mark, Put, Record, Sessions

ACK_KEEP_MS = DAY_MS
"""How long a command is known by its `(source, id)`, and its acknowledgement kept."""
GATES_MOVED = b"gates"
"""The hint that travels the feed when a gate was decided or closed."""
ORDERED = b"orders"
"""The hint that travels the feed when a link has something to do."""

_JITTER_SECONDS = 0.004
_RECONNECTS = 3
_RECONNECT_SECONDS = 0.01


class Committer:
    """Commits of one process, whatever they meet. The caller bounds the time."""

    def __init__(self, sessions: Sessions, seats: Seats, *, clock: Clock, counters: Counters) -> None:
        self._sessions = sessions
        self._seats = seats
        self._clock = clock
        self._counters = counters

    async def settle(
        self, seat: Seat, batch: list[Submission], progress: Try, commit_id: str
    ) -> Reduction | None:
        """Reduce and commit until it is applied. Raises `StateError`; the caller bounds the time.

        What turns out to be decided before leaves the batch, settled; None when nothing is left of it.
        """
        key = seat.key
        known = progress.known
        if known is None and seat.state is None:
            known = await self._load(key)
        while True:
            now_ms = self._clock.now_ms()
            inputs = [entry for waiting in batch for entry in waiting.inputs]
            try:
                before = seat.state if known is None else self._decode(known)
            except NewerState:
                assert known is not None
                reduction = await self._pass_by(seat, batch, known, inputs, commit_id, progress, now_ms)
                if reduction is not None:
                    return reduction
                known = await self._load(key)
                continue
            version, top = (seat.version, seat.top) if known is None else (known.version, known.top)
            reduction = reduce(before, inputs, now_ms, top=top)
            state = reduction.state.encode()
            events = finished(seat, reduction.events)
            puts: list[Put | Mark] = [put for waiting in batch for put in waiting.puts]
            notice = b""
            if reduction.acks:
                puts += _acks(reduction, events)
            if reduction.state.gates or (before is not None and before.gates):
                marks, notice = _marks(key, before, reduction.state)
                puts += marks
            if any("order" in reply for reply in reduction.replies):
                notice = ORDERED
            result = await self._send(
                key,
                progress,
                expected=version,
                commit_id=commit_id,
                state=state,
                events=events,
                now_ms=now_ms,
                due_ms=reduction.state.due_ms,
                ended=reduction.state.ended,
                puts=puts,
                notice=notice,
            )
            if isinstance(result, Committed):
                top = max(top, events[-1][0]) if events else top
                self._seats.keep(seat, reduction.state, commit_id, top, len(state))
                return reduction
            known = result.record
            if result.taken:
                batch[:] = [waiting for waiting in batch if not waiting.recalled(result.taken)]
                if not batch:
                    return None
                continue
            self._counters.add("commits.conflicts")
            await asyncio.sleep(random.random() * _JITTER_SECONDS)

    def learn(self, seat: Seat, record: Record) -> None:
        """Guess that the session stands where it was just read."""
        try:
            state = None if record.state is None else self._decode(record)
        except NewerState:
            state = None
        if state is None or record.state is None:
            self._seats.drop(seat)
        else:
            self._seats.keep(seat, state, record.version, record.top, len(record.state))

    async def _pass_by(
        self,
        seat: Seat,
        batch: list[Submission],
        known: Record,
        inputs: list[Input],
        commit_id: str,
        progress: Try,
        now_ms: int,
    ) -> Reduction | None:
        """Tell what a newer version's state cannot be asked about, and leave that state as it is.

        None when somebody was faster. Raises NewerState for what needs the state, StateError.
        """
        told = versions.pass_by(inputs, top=known.top, now_ms=now_ms)
        if told is None or known.state is None or any(waiting.puts for waiting in batch):
            raise NewerState
        result = await self._send(
            seat.key,
            progress,
            expected=known.version,
            commit_id=commit_id,
            state=known.state,
            events=finished(seat, told),
            now_ms=now_ms,
            due_ms=now_ms + versions.LOOK_AGAIN_MS,
            ended=False,
            puts=(),
            notice=b"",
        )
        if isinstance(result, Conflict):
            self._counters.add("commits.conflicts")
            await asyncio.sleep(random.random() * _JITTER_SECONDS)
            return None
        self._counters.add("states.newer", len(told))
        return Reduction(SessionState(last_seq=told[-1].seq), told, tuple({} for _ in inputs))

    def _decode(self, record: Record) -> SessionState | None:
        """The state to reduce on. Of an expired one its tombstone is left: it ended, and where it stood."""
        if record.state is None:
            return SessionState.tombstone(record.top) if record.ended else None
        state, stored = versions.read(record.state, top=record.top, ended=record.ended)
        if not stored:
            self._counters.add("states.unreadable")
        return state

    async def _load(self, key: SessionKey) -> Record:
        for _ in range(_RECONNECTS):
            try:
                return await self._sessions.load(key)
            except (Unreachable, Unanswered):
                self._counters.add("redis.retries")
                await asyncio.sleep(_RECONNECT_SECONDS)
        return await self._sessions.load(key)

    async def _send(
        self,
        key: SessionKey,
        progress: Try,
        *,
        expected: str,
        commit_id: str,
        state: bytes,
        events: list[tuple[int, bytes]],
        now_ms: int,
        due_ms: int | None,
        ended: bool,
        puts: Sequence[Put | Mark],
        notice: bytes,
    ) -> Committed | Conflict:
        """Send one commit, again when its answer is lost: the commit id makes the repeat harmless."""
        tries = _RECONNECTS
        while True:
            progress.sent = True
            try:
                result = await self._sessions.commit(
                    key,
                    expected=expected,
                    commit_id=commit_id,
                    state=state,
                    events=events,
                    now_ms=now_ms,
                    due_ms=due_ms,
                    ended=ended,
                    puts=puts,
                    notice=notice,
                )
            except (Unreachable, Unanswered) as error:
                progress.sent = progress.unanswered = progress.unanswered or isinstance(error, Unanswered)
                if tries == 0:
                    raise
                tries -= 1
                self._counters.add("redis.retries")
                await asyncio.sleep(_RECONNECT_SECONDS)
            except Refused:
                progress.sent = progress.unanswered
                raise
            else:
                progress.sent = progress.unanswered = False
                return result


def finished(seat: Seat, events: Sequence[Emitted]) -> list[tuple[int, bytes]]:
    """Positions and bytes of what a reduction tells of a session."""
    key = seat.key
    return [
        (
            event.seq,
            finish(
                event.draft,
                id=event.id,
                time_ms=event.time_ms,
                source=seat.source,
                agent=key.agent,
                session=key.session,
                seq=event.seq,
                run=event.run,
                cause=event.cause,
            ),
        )
        for event in events
    ]


def _acks(reduction: Reduction, events: list[tuple[int, bytes]]) -> list[Put]:
    bodies = {event.id: body for event, (_, body) in zip(reduction.events, events, strict=True)}
    return [Put(ack_name(name), bodies[event_id], ACK_KEEP_MS) for name, event_id in reduction.acks]


def _marks(key: SessionKey, before: SessionState | None, after: SessionState) -> tuple[list[Mark], bytes]:
    """What changes in the index of gates, and the hint for those who wait."""
    were = before.gates if before is not None else {}
    marks, moved = [], False
    for ticket, gate in after.gates.items():
        if were.get(ticket) != gate:
            marks.append(mark(ticket, "open" if gate.verdict is None else "decided", gate.until, key))
            moved = moved or gate.verdict is not None
    for ticket in were.keys() - after.gates.keys():
        marks.append(unmark(ticket))
        moved = True
    return marks, GATES_MOVED if moved else b""
