"""Ticks for sessions that wait: what is due is reduced like any other moment, by any replica."""

from __future__ import annotations

import asyncio
import logging
import random

from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine
from handlers.lifecycle.reducer import Tick
from state.errors import StateError
from state.keys import Keys
from state.sessions import Sessions

log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.5
_LIMIT = 200
_TICK_SECONDS = 2.0


class Sweeper:
    """Looks at every shard's due list about twice a second."""

    def __init__(
        self, sessions: Sessions, engine: Engine, keys: Keys, *, clock: Clock, counters: Counters
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._counters = counters

    async def run(self) -> None:
        """Sweep until cancelled. The pauses are uneven, so that replicas do not march in step."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS * (0.5 + random.random()))
            try:
                await self.sweep()
            except StateError as error:
                log.debug("the sweeper could not look: %s", error)
            except Exception:
                log.exception("the sweeper failed")
                self._counters.add("sweeps.failed")

    async def sweep(self) -> int:
        """One pass over all shards; how many sessions got a tick."""
        ticked = 0
        for shard in range(self._keys.shards):
            now_ms = self._clock.now_ms()
            for key in await self._sessions.due(shard, now_ms, _LIMIT):
                deadline = self._clock.steady() + _TICK_SECONDS
                outcome = await self._engine.submit(key, Tick(), at_ms=now_ms, deadline=deadline)
                if outcome.stored == "yes":
                    ticked += 1
        self._counters.add("sweeps.ticks", ticked)
        return ticked
