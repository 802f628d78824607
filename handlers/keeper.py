"""The end of a held hook: its holder waits, finds out how the gate ended or ends it, and says so.

A holder waits on nothing but its own flag: the process's one feed reader raises it when a gate of that
session has moved, and so does a look at the index of gates once a second. That is a hint; what counts is
the state in Redis, read again before anything is done. While a hook is held no Redis connection is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from handlers.client import Client
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine, Stored
from handlers.errors import InvalidState
from handlers.held import Denied, Held, words_name
from handlers.lifecycle.entries import Gate, Verdict
from handlers.lifecycle.gates import DENY, OPTIONS, Close
from handlers.lifecycle.state import SessionState
from handlers.limit import Limit
from handlers.vigil import CLOSE_SECONDS, LOOK_SECONDS, PATIENT_SECONDS, Vigil
from state.errors import StateError
from state.keys import SessionKey
from state.sessions import Sessions

_APPLY_MS = 2_000
"""How long after its time an answer that came in time may still be applied: the shim waits 5 s longer."""
_RETRY_SECONDS = 0.1
_AT_ONCE = 64


class Keeper:
    """Keeps hooks, each until something ends it."""

    def __init__(
        self,
        sessions: Sessions,
        engine: Engine,
        vigil: Vigil,
        *,
        clock: Clock,
        counters: Counters,
        redact: Callable[[str], str],
    ) -> None:
        self.draining = False
        self._sessions = sessions
        self._engine = engine
        self._vigil = vigil
        self._clock = clock
        self._counters = counters
        self._redact = redact
        # Thousands may hang up in one moment: a commit that waits for all the others would seem to have met a
        # Redis that does not answer, and for that everybody's hooks are let go.
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def keep(self, held: Held, client: Client) -> Denied | None:
        """Wait. None lets the agent go on as if nobody had asked."""
        while True:
            if held.answering:
                await self._rest(held)
                continue
            if held.ended is not None:
                return self._told(held, held.ended)
            if self.over(client):
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
                        return await self._apply(held, client, gate.verdict)
            left = self.left_ms(held)
            if left <= -_APPLY_MS:
                return await self._let_go(held)
            if left <= 0:
                closed, stored = await self._close(held, "timeout")
                if stored == "yes" and closed is None:
                    # It was decided at the last moment.
                    held.moved = True
                    continue
                self._counters.add("gates.timeout")
                return self._gone(held, closed, stored)
            await self._wait(held, client, left / 1000)

    def left_ms(self, held: Held) -> float:
        """Milliseconds that a hook may still be held, negative when its time is over."""
        steady = (held.until - self._clock.steady()) * 1000
        return min(steady, held.until_ms - self._clock.now_ms())

    def over(self, client: Client) -> bool:
        """Whether nobody waits for the answer any more, or we do not."""
        return client.gone or self.draining

    async def _rest(self, held: Held) -> None:
        """Until something is said to the holder."""
        held.waker = asyncio.get_running_loop().create_future()
        try:
            await held.waker
        finally:
            held.waker = None

    async def _wait(self, held: Held, client: Client, seconds: float) -> None:
        if held.moved or self.over(client):
            return
        if not self._vigil.running:
            # Nobody looks for us (a host that freezes processes): look and say that we live by ourselves.
            seconds = min(seconds, LOOK_SECONDS)
        try:
            with Limit(seconds):
                await self._rest(held)
        except TimeoutError:
            if not self._vigil.running:
                held.moved = True
                await self._vigil.beat()

    async def _apply(self, held: Held, client: Client, verdict: Verdict) -> Denied | None:
        """Close the gate with its decision, while client and clock allow it; only then is it told."""
        words = None if verdict.name is not None else ""
        while True:
            await client.settle()
            if self.over(client) or self.left_ms(held) < -_APPLY_MS:
                self._counters.add("gates.withdrawn")
                return await self._let_go(held)
            if words is None:
                assert verdict.name is not None
                try:
                    words = await self._words(held.key, verdict.name)
                except StateError:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            held.words = words
            closed, stored = await self._close(held, "apply", verdict)
            if stored == "yes":
                return self._told(held, closed)
            if stored == "unknown":
                held.doubt = verdict.option
            await asyncio.sleep(_RETRY_SECONDS)

    async def _let_go(self, held: Held) -> Denied | None:
        """The hook goes without a decision, unless one had been applied and we did not hear of it."""
        closed, stored = await self._close(held, "withdrawn")
        return self._gone(held, closed, stored)

    def _gone(self, held: Held, closed: str | None, stored: Stored) -> Denied | None:
        if stored != "yes":
            self._vigil.owe(held)
            # It may stand in Redis that a decision was applied, so it is: nothing false is said either way.
            closed = held.doubt
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
        self, held: Held, why: Literal["apply", "timeout", "withdrawn"], verdict: Verdict | None = None
    ) -> tuple[str | None, Stored]:
        """Try once; how the gate ended, and whether that is in Redis."""
        if why == "apply":
            return await self._try(held, why, verdict)
        if self._turns.locked() and held.client is not None and held.client.gone:
            # Nobody waits for this one: it is closed with the next look.
            return None, "no"
        try:
            with Limit(CLOSE_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            return None, "no"
        try:
            return await self._try(held, why, verdict)
        finally:
            self._turns.release()

    async def _try(
        self, held: Held, why: Literal["apply", "timeout", "withdrawn"], verdict: Verdict | None
    ) -> tuple[str | None, Stored]:
        gone = held.client is not None and held.client.gone
        outcome = await self._engine.submit(
            held.key,
            self.closing(held, why, verdict),
            at_ms=self._clock.now_ms(),
            deadline=self._clock.steady() + (PATIENT_SECONDS if gone else CLOSE_SECONDS),
        )
        closed = outcome.reply.get("closed")
        return (closed if isinstance(closed, str) else None), outcome.stored

    def closing(
        self, held: Held, why: Literal["apply", "timeout", "withdrawn"], verdict: Verdict | None
    ) -> Close:
        """The input that lets the hook go; with a verdict its words ride as they may be told."""
        text = self._redact(held.words) if verdict is not None and held.words else None
        return Close(held.ticket, why, held.opened, text, verdict)

    async def _truth(self, held: Held) -> Gate | None:
        """The gate as it stands in Redis. Raises StateError."""
        record = await self._sessions.load(held.key)
        self._engine.learn(held.key, record)
        if record.state is None:
            return None
        try:
            return SessionState.decode(record.state).gates.get(held.ticket)
        except InvalidState:
            return None

    async def _words(self, key: SessionKey, name: str) -> str:
        found = await self._sessions.get(key, words_name(name))
        return "" if found is None else found.decode("utf-8", "replace")
