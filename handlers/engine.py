"""Load or guess, reduce, finish, commit: how a moment becomes events in Redis.

Per session at most one commit of this process is in flight; moments that arrive meanwhile wait, are reduced
together and go as one batch. Nearly always nobody is in the way and the guess of where the session stands is
right: that commit is one call down and one reply, and whatever else it meets is the long way's business
(`handlers.committing`), with the same commit id.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from handlers.aep.ulid import Mint
from handlers.breaker import Breaker
from handlers.clock import Clock
from handlers.committing import Committer, finished
from handlers.counters import Counters
from handlers.errors import NewerState
from handlers.lifecycle.reducer import Happening, Input, Placed, Reduction, reduce
from handlers.limit import Limit
from handlers.mapping.moments import Moment
from handlers.seats import Lane, Seat, Seats
from handlers.submissions import Outcome, Stored, Submission, Try, ack_name
from state.errors import NotReplicated, StateError, Unanswered
from state.keys import SessionKey
from state.sessions import Put, Record, Sessions

__all__ = ["Engine", "Outcome", "Stored", "ack_name"]

log = logging.getLogger(__name__)

_BATCH = 128
_STALL_SECONDS = 0.05
# A caller who has less than this share of the connection's own limit needs a limit of its own.
_SHARE = 0.95


@dataclass(slots=True, eq=False)
class _Step:
    """A commit that was sent on a guess; the future gives the script's reply."""

    reply: asyncio.Future[list[Any]]
    commit_id: str
    reduction: Reduction
    top: int
    size: int


class Engine:
    """The one way by which moments of our own sessions become events.

    All methods belong to one event loop.
    """

    def __init__(self, sessions: Sessions, *, clock: Clock, counters: Counters) -> None:
        self.breaker = Breaker()
        self._sessions = sessions
        self._clock = clock
        self._counters = counters
        self._seats = Seats()
        self._committer = Committer(sessions, self._seats, clock=clock, counters=counters)
        self._patience = sessions.client.limits.write * _SHARE
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(
        self, key: SessionKey, moment: Happening, *, at_ms: int, deadline: float
    ) -> Coroutine[Any, Any, Outcome]:
        """Commit one moment. `at_ms` is when it reached us, `deadline` a time of the steady clock."""
        return self.apply(key, (moment,), at_ms=at_ms, deadline=deadline)

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
        Never raises for a Redis that is gone, slow or frozen, and never takes longer than `deadline`, give or
        take a twentieth of the time that the connection gives a call.
        """
        now = self._clock.steady()
        if not self.breaker.allow(now):
            self._counters.add("moments.unstored.down", len(moments))
            return Outcome(({},) * len(moments), "no")
        inputs = tuple([_input(moment, at_ms) for moment in moments])
        seat = self._seats[key]
        if seat.lane is not None:
            outcome = await self._wait(seat.lane, Submission(inputs, deadline, puts), now)
        else:
            lane = seat.lane = Lane()
            step = None
            if seat.state is not None and not puts and deadline - now > self._patience:
                step = self._start(seat, inputs)
            if step is None:
                outcome = await self._lead(seat, lane, Submission(inputs, deadline, puts))
            else:
                progress = Try()
                try:
                    reply = await step.reply
                except (StateError, ResponseError) as error:
                    progress.sent = progress.unanswered = isinstance(error, Unanswered)
                    reply = _UNSAID
                except BaseException:
                    self._seats.drop(seat)
                    self._go_on(seat, lane)
                    raise
                if reply[0] == 1:
                    reduction = step.reduction
                    self._seats.keep(seat, reduction.state, step.commit_id, step.top, step.size)
                    self._stood(reduction)
                    self._go_on(seat, lane)
                    outcome = Outcome(reduction.replies, "yes")
                else:
                    self._seats.drop(seat)
                    if reply is not _UNSAID:
                        self._counters.add("commits.conflicts")
                        progress.known = self._sessions.conflict(reply).record
                    late = Submission(inputs, deadline)
                    outcome = await self._lead(seat, lane, late, step.commit_id, progress)
        self._counters.commit.observe(self._clock.steady() - now)
        return outcome

    async def close(self, seconds: float) -> None:
        """Wait for what is in flight, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def learn(self, key: SessionKey, record: Record) -> None:
        """Take over where a session stands, as just read, so that the next commit guesses right."""
        seat = self._seats[key]
        if seat.lane is None and seat.version != record.version:
            self._committer.learn(seat, record)
        self._seats.leave(seat)

    def forget(self) -> None:
        """Drop every guess, so that the next commit of each session reads first."""
        self._seats.clear()

    def _start(self, seat: Seat, inputs: tuple[Input, ...]) -> _Step | None:
        """Send what follows from the guess; None for what wants the long way. Nothing is sent then."""
        before = seat.state
        assert before is not None
        if before.gates:
            return None
        version, top = seat.version, seat.top
        now_ms = self._clock.now_ms()
        # What was merely observed asks for nothing but a plain commit, so the guess need not outlive it.
        own = all([type(entry.moment) is Moment for entry in inputs])
        if own:
            self._seats.drop(seat)
        try:
            reduction = reduce(before, inputs, now_ms, top=top, own=own)
            state = reduction.state
            if reduction.acks or state.gates or any(["order" in reply for reply in reduction.replies]):
                return None
            events = finished(seat, reduction.events)
            encoded = state.encode()
        except Exception:
            # The long way will say so, and save the other moments from it.
            return None
        if seat.form is None:
            seat.form = self._sessions.form(seat.key)
        commit_id = self._sessions.commit_id()
        reply = self._sessions.start(
            seat.form,
            expected=version,
            commit_id=commit_id,
            state=encoded,
            events=events,
            now_ms=now_ms,
            due_ms=state.due_ms,
            ended=state.ended,
        )
        if reply is None:
            return None
        if events:
            top = max(top, events[-1][0])
        return _Step(reply, commit_id, reduction, top, len(encoded))

    async def _wait(self, lane: Lane, waiting: Submission, now: float) -> Outcome:
        """Follow those who are under way."""
        waiting.future = asyncio.get_running_loop().create_future()
        lane.queue.append(waiting)
        try:
            with Limit(waiting.deadline - now):
                return await waiting.future
        except TimeoutError:
            self._give_up(lane, waiting)
        assert waiting.outcome is not None
        return waiting.outcome

    def _give_up(self, lane: Lane, waiting: Submission) -> None:
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
        waiting.lose(stored)

    async def _lead(
        self,
        seat: Seat,
        lane: Lane,
        waiting: Submission,
        commit_id: str | None = None,
        progress: Try | None = None,
    ) -> Outcome:
        """Commit the long way, with the id of a commit that may have been sent."""
        lane.flying = [waiting]
        await self._fly(seat, lane, commit_id, progress)
        assert waiting.outcome is not None
        return waiting.outcome

    async def _fly(
        self, seat: Seat, lane: Lane, commit_id: str | None = None, progress: Try | None = None
    ) -> None:
        """Commit what the lane holds."""
        try:
            await self._commit(seat, lane.flying, commit_id, progress)
        finally:
            for waiting in lane.flying:
                if waiting.outcome is None:
                    waiting.lose("unknown")
            self._go_on(seat, lane)

    def _go_on(self, seat: Seat, lane: Lane) -> None:
        """A task goes on with what has arrived meanwhile."""
        if lane.queue:
            lane.flying, lane.queue = lane.queue[:_BATCH], lane.queue[_BATCH:]
            task = asyncio.create_task(self._fly(seat, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            seat.lane = None
            self._seats.leave(seat)

    async def _commit(
        self,
        seat: Seat,
        batch: list[Submission],
        commit_id: str | None = None,
        progress: Try | None = None,
    ) -> None:
        batch = list(batch)
        deadline = max(waiting.deadline for waiting in batch)
        commit_id = commit_id or self._sessions.commit_id()
        progress = progress or Try()
        try:
            with Limit(deadline - self._clock.steady()):
                reduction = await self._committer.settle(seat, batch, progress, commit_id)
        except TimeoutError:
            now = self._clock.steady()
            if now - deadline > _STALL_SECONDS:
                # This process was late itself; that says nothing about Redis.
                self.breaker.release()
            else:
                self.breaker.fail(now, "Redis does not answer in time")
            self._lose(seat, batch, progress, "timeout")
        except NotReplicated:
            # It stands at the primary, which answers well; only its survival is not promised.
            self.breaker.succeed()
            self._lose(seat, batch, progress, "unreplicated")
        except StateError as error:
            self.breaker.fail(self._clock.steady(), str(error) or type(error).__name__)
            self._lose(seat, batch, progress, "error")
        except Exception as error:
            # A defect of ours must cost the agent nothing, and the other moments of the batch neither; nor
            # may what needs a state that we cannot read.
            self.breaker.release()
            self._seats.drop(seat)
            if len(batch) > 1:
                for waiting in batch:
                    await self._commit(seat, [waiting])
                return
            if isinstance(error, NewerState):
                self._lose(seat, batch, progress, "newer")
                return
            log.exception("a moment could not be reduced or finished")
            self._lose(seat, batch, progress, "defect")
        except BaseException:
            self.breaker.release()
            raise
        else:
            if reduction is None:
                self.breaker.succeed()
                return
            self._stood(reduction)
            replies = iter(reduction.replies)
            for waiting in batch:
                waiting.settle([next(replies) for _ in waiting.inputs], "yes")

    def _stood(self, reduction: Reduction) -> None:
        self.breaker.succeed()
        self._counters.stood(len(reduction.replies), len(reduction.events))

    def _lose(self, seat: Seat, batch: list[Submission], progress: Try, reason: str) -> None:
        self._seats.drop(seat)
        stored: Stored = "unknown" if progress.sent else "no"
        for waiting in batch:
            if waiting.outcome is None:
                self._counters.add(f"moments.unstored.{reason}", len(waiting.inputs))
                waiting.lose(stored)


_UNSAID: list[Any] = [0]
"""What is understood of no reply: nothing."""


def _input(happening: Happening, at_ms: int) -> Input:
    moment = happening.moment if isinstance(happening, Placed) else happening
    if isinstance(moment, Moment) and moment.time_ms is not None:
        at_ms = min(at_ms, moment.time_ms)
    return Input(happening, at_ms, Mint(at_ms, os.urandom(10)))
