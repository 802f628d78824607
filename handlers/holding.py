"""The hooks that this process holds: asked about, waited for, answered, let go.

An answer that is taken by the process which holds the hook is decided and closed by one commit. Any other
process only decides, and the holder closes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from handlers.client import Client
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine, Outcome, Stored
from handlers.held import Denied, Held, HeldBook
from handlers.keeper import Keeper
from handlers.lifecycle.commands import Answer, Command, Respond
from handlers.lifecycle.entries import Verdict
from handlers.lifecycle.gates import Hold, Opened
from handlers.mapping.moments import Draft, Moment
from handlers.vigil import CLOSE_SECONDS, DOUBT_SECONDS, Vigil
from state.gates import Gates
from state.keys import Keys, SessionKey
from state.leases import Leases
from state.sessions import Put, Sessions

__all__ = ["DOUBT_SECONDS", "Denied", "Held", "Holding"]


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
        self._engine = engine
        self._clock = clock
        self._counters = counters
        self._limit = limit
        self._book = HeldBook()
        self._numbers = itertools.count(1)
        self.vigil = Vigil(self._book, gates, leases, engine, keys, clock=clock, counters=counters)
        self._keeper = Keeper(sessions, engine, self.vigil, clock=clock, counters=counters, redact=redact)

    def __len__(self) -> int:
        return len(self._book)

    @property
    def doubts(self) -> bool:
        """Whether some holder seems to be dead, which another look may confirm."""
        return self.vigil.doubts

    def ticket(self) -> str:
        """A new ticket of this process."""
        return f"{self.vigil.holder}.{next(self._numbers)}"

    def look_soon(self) -> None:
        """The feed may have missed something."""
        self.vigil.look_soon()

    async def run(self) -> None:
        """Look after gates until cancelled."""
        await self.vigil.run()

    async def look(self) -> None:
        """Look after gates once. Raises StateError."""
        await self.vigil.look()

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
        if self._keeper.draining or len(self._book) >= self._limit:
            self._counters.add("gates.refused.full")
            outcome = await self._engine.submit(key, moment, at_ms=at_ms, deadline=deadline)
            return None, outcome.stored
        until = self._clock.steady() + (until_ms - at_ms) / 1000
        held = Held(key, self.ticket(), until_ms, until)
        self._book.add(held)
        try:
            if not self.vigil.running:
                await self.vigil.beat()
            given = Hold(moment, request, held.ticket, until_ms)
            outcome = await self._engine.submit(key, given, at_ms=at_ms, deadline=deadline)
        except BaseException:
            self._book.drop(held)
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
        self._book.drop(held)
        if outcome.stored == "unknown":
            self.vigil.owe(held)
        self._counters.add(f"gates.refused.{'session' if outcome.stored == 'yes' else 'redis'}")
        return None, outcome.stored

    async def keep(self, held: Held, client: Client) -> Denied | None:
        """Hold until something ends it. None lets the agent go on as if nobody had asked."""
        held.client = client
        client.on_gone(lambda: held.wake(moved=False))
        try:
            return await self._keeper.keep(held, client)
        finally:
            self._book.drop(held)

    async def answer(
        self, key: SessionKey, command: Command, words: str | None, puts: tuple[Put, ...]
    ) -> Outcome | None:
        """Decide a call that is held here and close it, in one commit; only then is the hook told.

        `words` are the sender's own, `puts` what is recorded with the command. None, and nothing was done,
        where this process does not hold the call, or its holder is at it already.
        """
        act = command.act.gate if isinstance(command.act, Respond) else command.act
        if not isinstance(act, Answer):
            return None
        held = self._book.asked(key, act.subject)
        if held is None or held.client is None or not held.idle or held.doubt is not None:
            return None
        held.answering = True
        try:
            await held.client.settle()
            if self._keeper.over(held.client) or self._keeper.left_ms(held) <= 0:
                return None
            verdict = Verdict(act.option, command.id, command.by, command.name if act.words else None)
            # As long as nobody says otherwise it may stand in Redis, and the holder has to look.
            held.words, held.doubt, held.moved = words or "", act.option, True
            outcome = await self._engine.apply(
                key,
                (command, self._keeper.closing(held, "apply", verdict)),
                at_ms=self._clock.now_ms(),
                deadline=self._clock.steady() + CLOSE_SECONDS,
                puts=puts,
            )
            if outcome.stored != "unknown":
                held.doubt = None
            closed = outcome.replies[-1].get("closed")
            if outcome.stored == "yes" and isinstance(closed, str):
                held.ended = closed
            return outcome
        finally:
            held.answering = False
            held.wake(moved=False)

    def wake(self, key: SessionKey) -> None:
        """A gate of this session has moved."""
        for held in self._book.of(key):
            held.wake()

    def drain(self) -> None:
        """The process is stopping: let everybody go."""
        self._keeper.draining = True
        for held in self._book:
            held.wake(moved=False)
