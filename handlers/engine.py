"""Load or guess, reduce, finish, commit: how a moment becomes events in Redis.

Per session at most one commit of this process is in flight; moments that arrive meanwhile wait, are reduced
together and go as one batch. A commit that another replica overtook is reduced again on the state that won,
until the deadline. The ids of the events come from each input's own mint, and a batch keeps its commit id
through all tries, so that a reply lost on the way back never doubles an event.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from handlers.aep.envelope import finish, source_uri
from handlers.aep.levels import JSONObject
from handlers.aep.ulid import Mint
from handlers.breaker import Breaker
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.errors import NewerState
from handlers.lifecycle import versions
from handlers.lifecycle.reducer import Command, Emitted, Happening, Input, Placed, Reduction, reduce
from handlers.lifecycle.state import SessionState
from handlers.limit import Limit
from handlers.mapping.moments import Moment
from state.errors import NotReplicated, Refused, StateError, Unanswered, Unreachable
from state.gates import mark, unmark
from state.keys import SessionKey
from state.sessions import DAY_MS, Committed, Conflict, Mark, Put, Record, Sessions

log = logging.getLogger(__name__)

Stored = Literal["yes", "no", "unknown"]

ACK_KEEP_MS = DAY_MS
"""How long a command is known by its `(source, id)`, and its acknowledgement kept."""
GATES_MOVED = b"gates"
"""The hint that travels the feed when a gate was decided or closed."""
ORDERED = b"orders"
"""The hint that travels the feed when a link has something to do."""

_BATCH = 128
_GUESSES = 4_096
_GUESSED_BYTES = 32 * 1024 * 1024
# Memory of a decoded state, for each of its encoded bytes.
_DECODED = 4
_JITTER_SECONDS = 0.004
_RECONNECTS = 3
_RECONNECT_SECONDS = 0.01
_STALL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one submission.

    `replies` has the reducer's reply to every input, `{}` unless there is something to say. `stored` is `yes`
    when the events are in Redis, `no` when they certainly are not, `unknown` when a commit was sent and no
    answer came. `recorded` is the acknowledgement of a command that had been decided before; then nothing
    was reduced.
    """

    replies: tuple[JSONObject, ...]
    stored: Stored
    recorded: bytes | None = None

    @property
    def reply(self) -> JSONObject:
        """The reply to the first input."""
        return self.replies[0] if self.replies else {}


@dataclass(slots=True, eq=False)
class _Waiting:
    inputs: tuple[Input, ...]
    deadline: float
    puts: tuple[Put, ...] = ()
    future: asyncio.Future[Outcome] | None = None
    outcome: Outcome | None = None

    def settle(self, replies: Sequence[JSONObject], stored: Stored, recorded: bytes | None = None) -> None:
        self.outcome = Outcome(tuple(replies), stored, recorded)
        if self.future is not None and not self.future.done():
            self.future.set_result(self.outcome)


@dataclass(slots=True, eq=False)
class _Lane:
    queue: list[_Waiting] = field(default_factory=list)
    flying: list[_Waiting] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Guess:
    """Where we left a session: what a right guess needs, decoded, because reducing does not change it."""

    state: SessionState
    version: str
    top: int
    size: int


@dataclass(slots=True)
class _Try:
    """Where a batch stands: `sent` while a commit of it may be applied without our knowing."""

    sent: bool = False
    unanswered: bool = False


class Engine:
    """The one way by which moments of our own sessions become events.

    All methods belong to one event loop.
    """

    def __init__(self, sessions: Sessions, *, clock: Clock, counters: Counters) -> None:
        self.breaker = Breaker()
        self._sessions = sessions
        self._clock = clock
        self._counters = counters
        self._lanes: dict[SessionKey, _Lane] = {}
        self._guesses: OrderedDict[SessionKey, _Guess] = OrderedDict()
        self._guessed_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, key: SessionKey, moment: Happening, *, at_ms: int, deadline: float) -> Outcome:
        """Commit one moment. `at_ms` is when it reached us, `deadline` a time of the steady clock."""
        return await self.apply(key, (moment,), at_ms=at_ms, deadline=deadline)

    async def apply(
        self,
        key: SessionKey,
        moments: Sequence[Happening],
        *,
        at_ms: int,
        deadline: float,
        puts: tuple[Put, ...] = (),
    ) -> Outcome:
        """Commit moments that belong together, in order, with `puts` in the same transaction.

        A moment that has a time of its own happened then, if that is before `at_ms`.
        Never raises for a Redis that is gone, slow or frozen, and never takes longer than `deadline`.
        """
        now = self._clock.steady()
        if not self.breaker.allow(now):
            self._counters.add("moments.unstored.down", len(moments))
            return Outcome(({},) * len(moments), "no")
        inputs = tuple(_input(moment, at_ms) for moment in moments)
        waiting = _Waiting(inputs, deadline, puts)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(flying=[waiting])
            await self._fly(key, lane)
        else:
            waiting.future = asyncio.get_running_loop().create_future()
            lane.queue.append(waiting)
            try:
                with Limit(deadline - now):
                    await waiting.future
            except TimeoutError:
                self._give_up(lane, waiting)
        assert waiting.outcome is not None
        self._counters.commit.observe(self._clock.steady() - now)
        return waiting.outcome

    async def close(self, seconds: float) -> None:
        """Wait for what is in flight, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def learn(self, key: SessionKey, record: Record) -> None:
        """Take over where a session stands, as just read, so that the next commit guesses right."""
        known = self._guesses.get(key)
        if key in self._lanes or (known is not None and known.version == record.version):
            return
        self._drop_guess(key)
        try:
            state = None if record.state is None else self._decode(record)
        except NewerState:
            state = None
        if state is not None and record.state is not None:
            self._guess(key, _Guess(state, record.version, record.top, len(record.state) * _DECODED))

    def forget(self) -> None:
        """Drop every guess, so that the next commit of each session reads first."""
        self._guesses.clear()
        self._guessed_bytes = 0

    def _give_up(self, lane: _Lane, waiting: _Waiting) -> None:
        """The deadline of a follower has passed while it waited or flew."""
        if waiting.outcome is not None:
            return
        if waiting in lane.queue:
            lane.queue.remove(waiting)
            stored: Stored = "no"
        else:
            stored = "unknown"
        self._counters.add(
            f"moments.unstored.{'queued' if stored == 'no' else 'timeout'}", len(waiting.inputs)
        )
        waiting.settle([{}] * len(waiting.inputs), stored)

    async def _fly(self, key: SessionKey, lane: _Lane) -> None:
        """Commit what the lane holds; a task goes on with what has arrived meanwhile."""
        try:
            await self._commit(key, lane.flying)
        finally:
            for waiting in lane.flying:
                if waiting.outcome is None:
                    waiting.settle([{}] * len(waiting.inputs), "unknown")
            lane.flying = []
            if lane.queue:
                lane.flying, lane.queue = lane.queue[:_BATCH], lane.queue[_BATCH:]
                task = asyncio.create_task(self._fly(key, lane))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                del self._lanes[key]

    async def _commit(self, key: SessionKey, batch: list[_Waiting]) -> None:
        batch = list(batch)
        deadline = max(waiting.deadline for waiting in batch)
        progress = _Try()
        try:
            with Limit(deadline - self._clock.steady()):
                reduction = await self._settle(key, batch, progress)
        except TimeoutError:
            now = self._clock.steady()
            if now - deadline > _STALL_SECONDS:
                # This process was late itself; that says nothing about Redis.
                self.breaker.release()
            else:
                self.breaker.fail(now, "Redis does not answer in time")
            self._lose(key, batch, progress, "timeout")
        except NotReplicated:
            # It stands at the primary, which answers well; only its survival is not promised.
            self.breaker.succeed()
            self._lose(key, batch, progress, "unreplicated")
        except StateError as error:
            self.breaker.fail(self._clock.steady(), str(error) or type(error).__name__)
            self._lose(key, batch, progress, "error")
        except Exception as error:
            # A defect of ours must cost the agent nothing, and the other moments of the batch neither; nor
            # may what needs a state that we cannot read.
            self.breaker.release()
            self._drop_guess(key)
            if len(batch) > 1:
                for waiting in batch:
                    await self._commit(key, [waiting])
                return
            if isinstance(error, NewerState):
                self._lose(key, batch, progress, "newer")
                return
            log.exception("a moment could not be reduced or finished")
            self._lose(key, batch, progress, "defect")
        except BaseException:
            self.breaker.release()
            raise
        else:
            self.breaker.succeed()
            if reduction is None:
                return
            self._counters.add("moments.stored", len(reduction.replies))
            self._counters.add("events.stored", len(reduction.events))
            replies = iter(reduction.replies)
            for waiting in batch:
                waiting.settle([next(replies) for _ in waiting.inputs], "yes")

    def _lose(self, key: SessionKey, batch: list[_Waiting], progress: _Try, reason: str) -> None:
        self._drop_guess(key)
        stored: Stored = "unknown" if progress.sent else "no"
        for waiting in batch:
            if waiting.outcome is None:
                self._counters.add(f"moments.unstored.{reason}", len(waiting.inputs))
                waiting.settle([{}] * len(waiting.inputs), stored)

    async def _settle(self, key: SessionKey, batch: list[_Waiting], progress: _Try) -> Reduction | None:
        """Reduce and commit until it is applied. Raises `StateError`; the caller bounds the time.

        What turns out to be decided before leaves the batch, settled; None when nothing is left of it.
        """
        commit_id = self._sessions.commit_id()
        known: _Guess | Record = self._guesses.get(key) or await self._load(key)
        while True:
            now_ms = self._clock.now_ms()
            inputs = [entry for waiting in batch for entry in waiting.inputs]
            try:
                before = known.state if isinstance(known, _Guess) else self._decode(known)
            except NewerState:
                assert isinstance(known, Record)
                reduction = await self._pass_by(key, batch, known, inputs, commit_id, progress, now_ms)
                if reduction is not None:
                    return reduction
                known = await self._load(key)
                continue
            reduction = reduce(before, inputs, now_ms, top=known.top)
            state = reduction.state.encode()
            events = [(event.seq, self._bytes(key, event)) for event in reduction.events]
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
                expected=known.version,
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
                top = max(known.top, events[-1][0]) if events else known.top
                self._guess(key, _Guess(reduction.state, commit_id, top, len(state) * _DECODED))
                return reduction
            known = result.record
            if result.taken:
                batch[:] = [waiting for waiting in batch if not _recalled(waiting, result.taken)]
                if not batch:
                    return None
                continue
            self._counters.add("commits.conflicts")
            await asyncio.sleep(random.random() * _JITTER_SECONDS)

    async def _pass_by(
        self,
        key: SessionKey,
        batch: list[_Waiting],
        known: Record,
        inputs: list[Input],
        commit_id: str,
        progress: _Try,
        now_ms: int,
    ) -> Reduction | None:
        """Tell what a newer version's state cannot be asked about, and leave that state as it is.

        None when somebody was faster. Raises NewerState for what needs the state, StateError.
        """
        told = versions.pass_by(inputs, top=known.top, now_ms=now_ms)
        if told is None or known.state is None or any(waiting.puts for waiting in batch):
            raise NewerState
        result = await self._send(
            key,
            progress,
            expected=known.version,
            commit_id=commit_id,
            state=known.state,
            events=[(event.seq, self._bytes(key, event)) for event in told],
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
        progress: _Try,
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

    def _bytes(self, key: SessionKey, event: Emitted) -> bytes:
        return finish(
            event.draft,
            id=event.id,
            time_ms=event.time_ms,
            source=source_uri(key.emitter, key.agent, key.session),
            agent=key.agent,
            session=key.session,
            seq=event.seq,
            run=event.run,
            cause=event.cause,
        )

    def _guess(self, key: SessionKey, guess: _Guess) -> None:
        self._drop_guess(key)
        self._guesses[key] = guess
        self._guessed_bytes += guess.size
        while len(self._guesses) > _GUESSES or self._guessed_bytes > _GUESSED_BYTES:
            _, old = self._guesses.popitem(last=False)
            self._guessed_bytes -= old.size

    def _drop_guess(self, key: SessionKey) -> None:
        old = self._guesses.pop(key, None)
        if old is not None:
            self._guessed_bytes -= old.size


def _input(happening: Happening, at_ms: int) -> Input:
    moment = happening.moment if isinstance(happening, Placed) else happening
    if isinstance(moment, Moment) and moment.time_ms is not None:
        at_ms = min(at_ms, moment.time_ms)
    return Input(happening, at_ms, Mint(at_ms, os.urandom(10)))


def ack_name(name: str) -> str:
    """Under which side value the acknowledgement of the command `name` is recorded."""
    return f"ack:{name}"


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


def _recalled(waiting: _Waiting, taken: Mapping[str, bytes]) -> bool:
    """Settle a command that was decided before."""
    for entry in waiting.inputs:
        if isinstance(entry.moment, Command):
            recorded = taken.get(ack_name(entry.moment.name))
            if recorded is not None:
                waiting.settle([{}] * len(waiting.inputs), "yes", recorded)
                return True
    return False
