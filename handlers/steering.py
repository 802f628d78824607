"""Handing instructions over with the reply to a prompt: in order, once, and never on any other reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from handlers.client import Client
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine
from handlers.held import words_name
from handlers.lifecycle.instructions import Deliver, GiveBack
from state.errors import StateError
from state.keys import SessionKey
from state.sessions import Sessions

log = logging.getLogger(__name__)

_SECONDS = 1.5
_RETRY_SECONDS = 1.0
_TRIES = 30


class Steering:
    """Hands over what waits for a session's next prompt (kimi-code reads `message` of that reply only)."""

    def __init__(self, sessions: Sessions, engine: Engine, *, clock: Clock, counters: Counters) -> None:
        self._sessions = sessions
        self._engine = engine
        self._clock = clock
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, key: SessionKey, names: Sequence[str], ticket: str, client: Client) -> str | None:
        """The message for the prompt of `ticket`; from then on it counts as delivered."""
        try:
            async with asyncio.timeout(_SECONDS):
                found = await asyncio.gather(*(self._sessions.get(key, words_name(name)) for name in names))
        except (StateError, TimeoutError):
            return None
        texts = {
            name: text.decode("utf-8", "replace") for name, text in zip(names, found, strict=True) if text
        }
        await client.settle()
        if client.gone:
            return None
        lost = tuple(name for name in names if name not in texts)
        given = Deliver(ticket, tuple(texts), lost)
        outcome = await self._submit(key, given)
        if outcome is None:
            # Told as delivered or not, it is not: put it back as soon as that can be known.
            self._later(key, ticket)
            return None
        self._counters.add("instructions.delivered", len(outcome))
        return "\n\n".join(texts[name] for name in outcome) or None

    async def give_back(self, key: SessionKey, ticket: str) -> None:
        """The client was gone before the reply was written."""
        self._counters.add("instructions.returned")
        if not await self._give_back(key, ticket):
            self._later(key, ticket)

    async def close(self) -> None:
        """End what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _submit(self, key: SessionKey, given: Deliver) -> list[str] | None:
        now = self._clock.now_ms()
        outcome = await self._engine.submit(key, given, at_ms=now, deadline=self._clock.steady() + _SECONDS)
        delivered = outcome.reply.get("delivered")
        if outcome.stored == "yes" and isinstance(delivered, list):
            return [str(name) for name in delivered]
        return [] if outcome.stored == "no" else None

    async def _give_back(self, key: SessionKey, ticket: str) -> bool:
        now = self._clock.now_ms()
        outcome = await self._engine.submit(
            key, GiveBack(ticket), at_ms=now, deadline=self._clock.steady() + _SECONDS
        )
        return outcome.stored == "yes"

    def _later(self, key: SessionKey, ticket: str) -> None:
        task = asyncio.create_task(self._insist(key, ticket))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _insist(self, key: SessionKey, ticket: str) -> None:
        for _ in range(_TRIES):
            await asyncio.sleep(_RETRY_SECONDS)
            if await self._give_back(key, ticket):
                return
        self._counters.add("instructions.uncertain")
