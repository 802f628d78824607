"""Orders on their way to a web link: who waits for some, and what is handed over, each once.

A link keeps one request open. It is woken by the feed when a commit of any process wrote an order; when it
comes, it looks for what was ordered while it was away. What is handed over is taken out of the session's
waiting orders first, so that no second link can do it too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from handlers.aep.levels import JSONObject, JSONValue
from handlers.client import Client
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine
from handlers.errors import InvalidState
from handlers.held import words_name
from handlers.lifecycle.entries import Order
from handlers.lifecycle.orders import ANSWER_MS, Fetch
from handlers.lifecycle.state import SessionState
from state.errors import StateError
from state.keys import Keys, SessionKey
from state.sessions import Sessions

log = logging.getLogger(__name__)

_FETCH_SECONDS = 2.0
_MOST = 1_000


@dataclass(slots=True, eq=False)
class _Poll:
    emitter: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    keys: set[SessionKey] = field(default_factory=set)
    look: bool = True


class WebOrders:
    """The requests of web links that wait in this process."""

    def __init__(
        self, sessions: Sessions, engine: Engine, keys: Keys, *, clock: Clock, counters: Counters
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._counters = counters
        self._polls: set[_Poll] = set()
        self._draining = False

    @property
    def polled(self) -> bool:
        """Whether a link waits here for something to do."""
        return bool(self._polls)

    def wake(self, key: SessionKey) -> None:
        """Something was ordered for a session, perhaps."""
        for poll in self._polls:
            if poll.emitter == key.emitter:
                poll.keys.add(key)
                poll.woken.set()

    def look_soon(self) -> None:
        """The feed was not seen whole."""
        for poll in self._polls:
            poll.look = True
            poll.woken.set()

    def drain(self) -> None:
        """Let every link go."""
        self._draining = True
        for poll in self._polls:
            poll.woken.set()

    async def collect(self, emitter: str, link: str, client: Client, seconds: float) -> list[JSONValue]:
        """What the link is to do; waits for something up to `seconds`, or until the client goes."""
        poll = _Poll(emitter)
        self._polls.add(poll)
        client.on_gone(poll.woken.set)
        until = self._clock.steady() + seconds
        try:
            while not (self._draining or client.gone):
                poll.woken.clear()
                if writes := await self._look(poll, link, client):
                    return writes
                async with asyncio.timeout(until - self._clock.steady()):
                    await poll.woken.wait()
        except TimeoutError:
            pass
        finally:
            self._polls.discard(poll)
        return []

    async def _look(self, poll: _Poll, link: str, client: Client) -> list[JSONValue]:
        keys, poll.keys = poll.keys, set()
        try:
            if poll.look:
                keys |= set(await self._waiting(poll.emitter))
                poll.look = False
            writes: list[JSONValue] = []
            for key in keys:
                writes += await self._fetch(key, link, client)
            return writes
        except StateError as error:
            log.debug("orders could not be looked for: %s", error)
            return []

    async def _waiting(self, emitter: str) -> Iterable[SessionKey]:
        """Sessions that may have orders: each of those is due soon."""
        until_ms = self._clock.now_ms() + ANSWER_MS
        found: list[SessionKey] = []
        for shard in range(self._keys.shards):
            due = await self._sessions.due(shard, until_ms, _MOST)
            found += [key for key in due if key == SessionKey(emitter, key.session)]
        return found

    async def _fetch(self, key: SessionKey, link: str, client: Client) -> list[JSONValue]:
        waiting = await self._orders(key, link)
        if not any(order.phase == "new" for order in waiting.values()):
            return []
        await client.settle()
        if client.gone:
            return []
        outcome = await self._engine.submit(
            key,
            Fetch(link),
            at_ms=self._clock.now_ms(),
            deadline=self._clock.steady() + _FETCH_SECONDS,
        )
        names = outcome.reply.get("orders")
        handed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        if any(name not in waiting for name in handed):
            waiting = await self._orders(key, link)
        self._counters.add("orders.handed", len(handed))
        return [await self._write(key, name, waiting[name]) for name in handed if name in waiting]

    async def _orders(self, key: SessionKey, link: str) -> dict[str, Order]:
        record = await self._sessions.load(key)
        if record.state is None:
            return {}
        try:
            web = SessionState.decode(record.state).web
        except InvalidState:
            return {}
        return web.orders if web.link == link else {}

    async def _write(self, key: SessionKey, name: str, order: Order) -> JSONObject:
        write: JSONObject = {"id": name, "session": key.session}
        if order.kind == "cancel":
            return write | {"do": "abort"}
        write |= {"do": "decide", "approval": order.target, "decision": order.option}
        if order.words:
            words = await self._sessions.get(key, words_name(name))
            if words is not None:
                write["feedback"] = words.decode("utf-8", "replace")
        return write
