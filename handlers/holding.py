"""The hooks that this process holds, and the gates of those that can hold no more.

A holder waits on nothing but its own flag: the process's one feed reader raises it when a gate of that
session has moved, and so does a look at the index of gates once a second. That is a hint; what counts is
the state in Redis, read again before anything is done. While a hook is held no Redis connection is.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from handlers.client import Client
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine, Stored
from handlers.errors import InvalidState
from handlers.lifecycle.gates import DENY, OPTIONS, Close, Hold, Opened
from handlers.lifecycle.state import Gate, SessionState, Verdict
from handlers.limit import Limit
from handlers.mapping.moments import Draft, Moment
from state.errors import StateError
from state.gates import Gates, Waiting
from state.keys import Keys, SessionKey
from state.leases import Leases
from state.sessions import Sessions

log = logging.getLogger(__name__)

BEAT_TTL_MS = 4_000
"""How long a process counts as living after it has last said so."""
_LOOK_SECONDS = 1.0
DOUBT_SECONDS = 2.0
"""How long a holder must be silent beyond that, so that a Redis which was away accuses nobody."""
_APPLY_MS = 2_000
"""How long after its time an answer that came in time may still be applied: the shim waits 5 s longer."""
_CLOSE_SECONDS = 0.5
_RETRY_SECONDS = 0.1
_MOST_DEBTS = 10_000
_TOGETHER = 50
_SWEPT_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Denied:
    """The agent is to be told no, for this reason."""

    reason: str


@dataclass(slots=True, eq=False)
class Held:
    """One hook that this process holds."""

    key: SessionKey
    ticket: str
    until_ms: int  # by the wall clock, which everybody sees
    until: float  # by the steady clock, which never holds an agent longer
    opened: Opened | None = None
    verdict: Verdict | None = None
    words: str | None = None
    moved: bool = False
    waker: asyncio.Future[None] | None = None

    def wake(self, *, moved: bool = True) -> None:
        """Let the holder look: at Redis where the gate may have `moved`, else only at client and clock."""
        self.moved = self.moved or moved
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)


@dataclass(slots=True)
class _Debt:
    """A gate of ours that is let go, and not closed in Redis yet."""

    key: SessionKey
    opened: Opened | None


class Holding:
    """Holds hooks, and looks after the gates of the whole deployment."""

    def __init__(
        self,
        sessions: Sessions,
        gates: Gates,
        leases: Leases,
        engine: Engine,
        keys: Keys,
        *,
        clock: Clock,
        counters: Counters,
        redact: Callable[[str], str],
        limit: int,
    ) -> None:
        self._sessions = sessions
        self._gates = gates
        self._leases = leases
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._counters = counters
        self._redact = redact
        self._limit = limit
        self._held: dict[str, Held] = {}
        self._by_session: dict[SessionKey, set[Held]] = {}
        self._debts: dict[str, _Debt] = {}
        self._suspects: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._soon = asyncio.Event()
        self._looking = False
        self._draining = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def doubts(self) -> bool:
        """Whether some holder seems to be dead, which another look may confirm."""
        return bool(self._suspects)

    def ticket(self) -> str:
        """A new ticket of this process."""
        return f"{self._leases.holder}.{next(self._numbers)}"

    async def open(
        self,
        key: SessionKey,
        moment: Moment,
        request: Draft,
        *,
        until_ms: int,
        at_ms: int,
        deadline: float,
    ) -> tuple[Held | None, Stored]:
        """Ask for a decision about a call; whoever waits is known before anybody can answer.

        Returns what is held, None where the hook is free to go, and whether the moment was stored.
        """
        if self._draining or len(self._held) >= self._limit:
            self._counters.add("gates.refused.full")
            outcome = await self._engine.submit(key, moment, at_ms=at_ms, deadline=deadline)
            return None, outcome.stored
        until = self._clock.steady() + (until_ms - at_ms) / 1000
        held = Held(key, self.ticket(), until_ms, until)
        self._add(held)
        try:
            if not self._looking:
                await self._beat()
            given = Hold(moment, request, held.ticket, until_ms)
            outcome = await self._engine.submit(key, given, at_ms=at_ms, deadline=deadline)
        except BaseException:
            self._drop(held)
            raise
        reply = outcome.reply
        if outcome.stored == "yes" and isinstance(reply.get("gate"), str):
            run, asked = reply.get("run"), reply.get("at")
            held.opened = Opened(
                str(reply["gate"]),
                asked if isinstance(asked, int) else at_ms,
                run if isinstance(run, str) else None,
                request.capture.value == "none",
            )
            self._counters.add("gates.held")
            return held, outcome.stored
        self._drop(held)
        if outcome.stored == "unknown":
            self._owe(held)
        self._counters.add(f"gates.refused.{'session' if outcome.stored == 'yes' else 'redis'}")
        return None, outcome.stored

    async def keep(self, held: Held, client: Client) -> Denied | None:
        """Hold until something ends it. None lets the agent go on as if nobody had asked."""
        client.on_gone(lambda: held.wake(moved=False))
        try:
            return await self._keep(held, client)
        finally:
            self._drop(held)

    def wake(self, key: SessionKey) -> None:
        """A gate of this session has moved."""
        for held in self._by_session.get(key, ()):
            held.wake()

    def look_soon(self) -> None:
        """The feed may have missed something."""
        self._soon.set()

    def drain(self) -> None:
        """The process is stopping: let everybody go."""
        self._draining = True
        for held in self._held.values():
            held.wake(moved=False)

    async def run(self) -> None:
        """Look every second until cancelled."""
        self._looking = True
        try:
            while True:
                try:
                    await self.look()
                except StateError as error:
                    log.debug("gates could not be looked at: %s", error)
                    self._suspects.clear()
                except Exception:
                    log.exception("looking after gates failed")
                    self._counters.add("gates.failed")
                try:
                    with Limit(_LOOK_SECONDS * (0.75 + random.random() / 2)):
                        await self._soon.wait()
                except TimeoutError:
                    continue
                self._soon.clear()
        finally:
            self._looking = False

    async def look(self) -> None:
        """Say that we live, compare our holds with the index, close what the dead have left.

        Raises StateError.
        """
        await self._beat()
        await self._pay()
        others: dict[str, list[Waiting]] = {}
        # What is held from now on may be missing in what is read.
        mine = {held.ticket: held for held in self._held.values() if held.opened is not None}
        for shard in range(self._keys.shards):
            for entry in await self._gates.waiting(shard):
                if entry.holder != self._leases.holder:
                    others.setdefault(entry.holder, []).append(entry)
                    continue
                known = self._held.get(entry.ticket)
                if known is None:
                    self._debts.setdefault(entry.ticket, _Debt(entry.key, None))
                elif entry.phase == "decided":
                    known.wake()
                mine.pop(entry.ticket, None)
        for held in mine.values():
            held.wake()
        await self._bury(others)

    async def _keep(self, held: Held, client: Client) -> Denied | None:
        while True:
            if self._over(client):
                self._counters.add("gates.withdrawn")
                return await self._let_go(held)
            if held.moved:
                held.moved = False
                try:
                    gate = await self._truth(held)
                except StateError:
                    held.moved = True
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    if gate is None:
                        return await self._let_go(held)
                    if gate.verdict is not None:
                        held.verdict = gate.verdict
                        return await self._apply(held, client)
            left = self._left_ms(held)
            if left <= -_APPLY_MS:
                return await self._let_go(held)
            if left <= 0:
                closed, stored = await self._close(held, "timeout")
                if stored == "yes" and closed is None:
                    # It was decided at the last moment.
                    held.moved = True
                    continue
                if stored != "yes":
                    self._owe(held)
                self._counters.add("gates.timeout")
                return self._told(held, closed)
            await self._wait(held, client, left / 1000)

    def _left_ms(self, held: Held) -> float:
        """Milliseconds that a hook may still be held, negative when its time is over."""
        steady = (held.until - self._clock.steady()) * 1000
        return min(steady, held.until_ms - self._clock.now_ms())

    def _over(self, client: Client) -> bool:
        return client.gone or self._draining

    async def _wait(self, held: Held, client: Client, seconds: float) -> None:
        if held.moved or self._over(client):
            return
        if not self._looking:
            # Nobody looks for us (a host that freezes processes): look and say that we live by ourselves.
            seconds = min(seconds, _LOOK_SECONDS)
        held.waker = asyncio.get_running_loop().create_future()
        try:
            with Limit(seconds):
                await held.waker
        except TimeoutError:
            if not self._looking:
                held.moved = True
                await self._beat()
        finally:
            held.waker = None

    async def _apply(self, held: Held, client: Client) -> Denied | None:
        """Close the gate with its decision, while client and clock allow it; only then is it told."""
        verdict = held.verdict
        assert verdict is not None
        certain = True
        while True:
            await client.settle()
            if self._over(client) or self._left_ms(held) < -_APPLY_MS:
                if certain:
                    self._counters.add("gates.withdrawn")
                    return await self._let_go(held)
                break
            if verdict.name is not None and held.words is None:
                try:
                    held.words = await self._words(held.key, verdict.name)
                except StateError:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            closed, stored = await self._close(held, "apply")
            if stored == "yes":
                return self._told(held, closed)
            certain = certain and stored == "no"
            await asyncio.sleep(_RETRY_SECONDS)
        # It may stand in Redis that the decision was applied, so it is: nothing false is said either way.
        self._owe(held)
        return self._told(held, verdict.option)

    async def _let_go(self, held: Held) -> Denied | None:
        """The hook goes without a decision, unless one had been applied and we did not hear of it."""
        closed, stored = await self._close(held, "withdrawn")
        if stored != "yes":
            self._owe(held)
        return self._told(held, closed)

    def _told(self, held: Held, closed: str | None) -> Denied | None:
        if closed in OPTIONS:
            self._counters.add(f"gates.answered.{closed}")
        else:
            self._counters.add("gates.freed")
        if closed != DENY:
            return None
        return Denied(held.words or "Denied by the operator.")

    async def _close(
        self, held: Held, why: Literal["apply", "timeout", "withdrawn"]
    ) -> tuple[str | None, Stored]:
        """Try once; how the gate ended, and whether that is in Redis."""
        text = self._redact(held.words) if why == "apply" and held.words else None
        given = Close(held.ticket, why, held.opened, text)
        outcome = await self._engine.submit(
            held.key,
            given,
            at_ms=self._clock.now_ms(),
            deadline=self._clock.steady() + _CLOSE_SECONDS,
        )
        closed = outcome.reply.get("closed")
        return (closed if isinstance(closed, str) else None), outcome.stored

    async def _truth(self, held: Held) -> Gate | None:
        """The gate as it stands in Redis. Raises StateError."""
        record = await self._sessions.load(held.key)
        if record.state is None:
            return None
        try:
            return SessionState.decode(record.state).gates.get(held.ticket)
        except InvalidState:
            return None

    async def _words(self, key: SessionKey, name: str) -> str:
        found = await self._sessions.get(key, words_name(name))
        return "" if found is None else found.decode("utf-8", "replace")

    async def _beat(self) -> None:
        try:
            await self._leases.beat(BEAT_TTL_MS)
        except StateError as error:
            log.debug("this process could not say that it lives: %s", error)

    async def _pay(self) -> None:
        """Close in Redis what was let go while Redis was away."""
        owed = list(self._debts.items())
        for start in range(0, len(owed), _TOGETHER):
            group = owed[start : start + _TOGETHER]
            paid = await asyncio.gather(
                *(self._withdraw(debt.key, ticket, debt.opened) for ticket, debt in group)
            )
            for (ticket, _), done in zip(group, paid, strict=True):
                if done:
                    self._debts.pop(ticket, None)
            if not all(paid):
                return

    async def _bury(self, others: dict[str, list[Waiting]]) -> None:
        """Close the gates of processes that have been silent for long enough."""
        now = self._clock.steady()
        for holder in self._suspects.keys() - others.keys():
            del self._suspects[holder]
        for holder, entries in others.items():
            if await self._leases.lives(holder):
                self._suspects.pop(holder, None)
                continue
            if now - self._suspects.setdefault(holder, now) < DOUBT_SECONDS:
                continue
            for start in range(0, min(len(entries), _SWEPT_AT_ONCE), _TOGETHER):
                group = entries[start : start + _TOGETHER]
                swept = await asyncio.gather(
                    *(self._withdraw(entry.key, entry.ticket, None) for entry in group)
                )
                self._counters.add("gates.swept", sum(swept))
                await self._beat()

    async def _withdraw(self, key: SessionKey, ticket: str, opened: Opened | None) -> bool:
        """Close a gate that nobody holds; whether it is closed for certain."""
        outcome = await self._engine.submit(
            key,
            Close(ticket, "withdrawn", opened),
            at_ms=self._clock.now_ms(),
            deadline=self._clock.steady() + _CLOSE_SECONDS,
        )
        return outcome.stored == "yes"

    def _owe(self, held: Held) -> None:
        if len(self._debts) < _MOST_DEBTS:
            self._debts[held.ticket] = _Debt(held.key, held.opened)
        else:
            self._counters.add("gates.unclosed")

    def _add(self, held: Held) -> None:
        self._held[held.ticket] = held
        self._by_session.setdefault(held.key, set()).add(held)

    def _drop(self, held: Held) -> None:
        self._held.pop(held.ticket, None)
        others = self._by_session.get(held.key)
        if others is not None:
            others.discard(held)
            if not others:
                del self._by_session[held.key]


def words_name(name: str) -> str:
    """Under which side value the words of the command `name` are kept."""
    return f"say:{name}"
