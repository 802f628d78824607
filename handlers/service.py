"""What one process has: settings, connections, engine, hub, sweeper; and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence

from handlers.aep.levels import Capture
from handlers.audit import Audit
from handlers.auth import Gatekeeper
from handlers.claims import ClaimBook, process_name
from handlers.clock import Clock, SystemClock
from handlers.commands import OWN, NoCommands, OwnCommands, OwnSessions, Router, unpack
from handlers.control import Control
from handlers.counters import Counters
from handlers.engine import Engine
from handlers.errors import SettingsError
from handlers.fanout import Hub
from handlers.holding import DOUBT_SECONDS, Holding
from handlers.ingest import Ingest
from handlers.preparation import EXAMINE_SECONDS, client, posture, trusted
from handlers.rates import Rates
from handlers.relay import Bound
from handlers.replaying import Replayer
from handlers.settings import Settings
from handlers.steering import Steering
from handlers.sweeper import Sweeper
from handlers.web_orders import WebOrders
from state.claims import Claims
from state.clocks import Clocks
from state.connection import Client
from state.errors import LayoutMismatch, StateError, UnsafeServer
from state.feed import FeedEntry, FeedReader, Gap
from state.foreign import Foreign
from state.gates import Gates
from state.keys import Keys
from state.leases import Leases
from state.replay import Replay
from state.sessions import Bounds, Sessions
from state.wires import Wires

log = logging.getLogger(__name__)

_PING_SECONDS = 0.5
_LAYOUT_SECONDS = 1.0
_COMPARE_SECONDS = 10.0
_TOKENS_SECONDS = 2.0
_FLIGHT_SECONDS = 1.0


class Service:
    """The parts of one process and their lifetimes. Connections are made by their first use."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, serverless: bool = False) -> None:
        if settings.redis_url is None:
            raise SettingsError(
                "AEP_REDIS_URL", "not set; only 'aep-kimi serve' runs without it, with a server of its own"
            )
        controlled = settings.controls
        self.gate = Gatekeeper(settings)
        if controlled is not None and not self.gate.answerable:
            raise SettingsError(
                controlled, "needs AEP_TOKEN or AEP_TOKENS_FILE: only an authenticated connection may control"
            )
        if settings.control and settings.capture_attention is Capture.NONE:
            raise SettingsError(
                "AEP_CAPTURE_ATTENTION", "a held call cannot be asked about with 'none': use 'metadata'"
            )
        self.settings = settings
        self.serverless = serverless
        self.clock: Clock = clock or SystemClock()
        self.counters = Counters()
        self.audit = Audit(self.clock, self.counters)
        self.rates = Rates(settings.rate)
        self.offset_ms: int | None = None
        self.posture = posture(settings)
        self.draining = False
        self.client: Client = client(settings)
        self.keys = Keys(settings.redis_prefix, settings.shards)
        self.sessions = Sessions(self.client, self.keys, Bounds(buffer=settings.buffer))
        self.replay = Replay(self.client, self.keys)
        self.wires = Wires(self.client, self.keys)
        self.foreign = Foreign(self.client, self.keys, self.sessions.bounds)
        self.replayer = Replayer(self.sessions, self.replay, self.foreign, self.keys, self.gate.emitters)
        self.engine = Engine(self.sessions, clock=self.clock, counters=self.counters)
        self.hub = Hub(self.counters)
        self.reader = FeedReader(self.client, self.keys, self._entries, self._gap, idle=self._unwatched)
        self.ingest = Ingest(self.foreign, self.gate.emitters, clock=self.clock, counters=self.counters)
        process = process_name()
        self.claims = ClaimBook(Claims(self.client, self.keys, process), self.clock)
        self.holding = Holding(
            self.sessions,
            Gates(self.client, self.keys),
            Leases(self.client, self.keys, process),
            self.engine,
            self.keys,
            clock=self.clock,
            counters=self.counters,
            redact=str if settings.capture_attention is Capture.FULL else self.posture.redactor.text,
            limit=settings.max_held,
        )
        self.steering = Steering(self.sessions, self.engine, clock=self.clock, counters=self.counters)
        self.web_orders = WebOrders(
            self.sessions, self.engine, self.keys, clock=self.clock, counters=self.counters
        )
        self.own_commands: OwnCommands = NoCommands()
        if controlled is not None:
            self.own_commands = Control(
                settings,
                self.engine,
                self.sessions,
                self.foreign,
                self.holding,
                clock=self.clock,
                counters=self.counters,
            )
        self.router = Router(
            self.claims,
            OwnSessions(self.sessions, self.keys, self.gate.emitters, self.engine.learn, clock=self.clock),
            lambda: self.own_commands,
            self.foreign,
            self.counters,
        )
        self.sweeper = Sweeper(
            self.sessions, self.engine, self.keys, clock=self.clock, counters=self.counters
        )
        self.bound = Bound(self.client, self.keys)
        self.clocks = Clocks(self.client, self.keys, process)
        self._tasks: list[asyncio.Task[None]] = []
        self._started_ms = self.clock.now_ms()
        self._mismatch: str | None = None
        self._unsafe = False
        self._examined = False

    async def start(self) -> None:
        """Begin the background work: the check of the server, the feed reader, the sweeper.

        Raises SettingsError for a server that throws state away. One that is away is no reason not to start;
        it is looked at when it comes, and then health says what is wrong with it.
        """
        if self.settings.idle is not None:
            log.warning("%s", self.settings.idle)
        # The first hook must not wait for the connection.
        if await self.ping():
            with contextlib.suppress(StateError, TimeoutError):
                async with asyncio.timeout(EXAMINE_SECONDS):
                    await self._examine()
        else:
            log.warning("Redis does not answer yet: until it does, hooks are let go and nothing is stored")
        if self._unsafe:
            await self.client.close()
            raise SettingsError("AEP_REDIS_URL", str(self._mismatch))
        self.reader.start()
        for work in (
            self._prepare(),
            self._follow(),
            self._compare(),
            self.sweeper.run(),
            self.claims.run(),
        ):
            self._begin(work)
        if self.settings.control:
            self._begin(self.holding.run())
        if self.settings.tokens_file:
            self._begin(self._watch_tokens())

    def drain(self) -> None:
        """Stop taking consumers, and tell those that are here. Safe to call twice."""
        if not self.draining:
            self.draining = True
            self.hub.drain()
            self.holding.drain()
            self.web_orders.drain()

    async def stop(self) -> None:
        """End the background work and the connections, once what is in flight has landed."""
        self.drain()
        await self.steering.close()
        await self.engine.close(_FLIGHT_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reader.stop()
        await self.client.close()

    async def sweep(self) -> int:
        """What the background does elsewhere, once: tick what is due, close what dead holders have left.

        For hosts where nothing runs in the background; how many sessions got a tick. Raises StateError.
        """
        ticked = await self.sweeper.sweep()
        if self.settings.control:
            await self.holding.look()
            if self.holding.doubts:
                await asyncio.sleep(DOUBT_SECONDS)
                await self.holding.look()
        return ticked

    async def ping(self) -> bool:
        """Whether Redis answers now, and with a layout that is ours."""
        if self._mismatch is not None:
            return False
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self.client.call(self.keys.layout, "GET", self.keys.layout)
        except (StateError, TimeoutError):
            return False
        return True

    def problem(self) -> str | None:
        """What is wrong, in a sentence without secrets; None when nothing is known to be."""
        if self._mismatch is not None:
            return self._mismatch
        if not self.engine.breaker.closed:
            return f"events cannot be stored: {self.engine.breaker.reason}"
        if self.reader.failures and not self.reader.connected:
            return "the live feed of Redis cannot be read"
        return None

    async def relay_bound(self) -> bool:
        """Whether a relay link of this deployment holds its connection."""
        return await self.bound.read()

    @property
    def uptime_ms(self) -> int:
        """How long this process has been there."""
        return self.clock.now_ms() - self._started_ms

    def figures(self) -> dict[str, object]:
        """Counts for those who may see them."""
        return {
            "uptime_s": self.uptime_ms // 1000,
            "consumers": self.hub.consumers,
            "held": len(self.holding),
            "feed_missed": self.reader.missed,
            "counters": self.counters.snapshot(),
        }

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _prepare(self) -> None:
        """Look at the server as soon as it is there."""
        waited = False
        while not self._examined:
            with contextlib.suppress(StateError):
                await self._examine()
                if waited:
                    log.info("Redis answers")
                return
            waited = True
            await asyncio.sleep(_LAYOUT_SECONDS)

    async def _examine(self) -> None:
        """Compare the layout in Redis with ours, and ask whether it keeps what it is given.

        Raises StateError while it does not answer.
        """
        try:
            for warning in await trusted(self.client):
                log.warning("Redis: %s", warning)
            await self.sessions.prepare()
        except (LayoutMismatch, UnsafeServer) as error:
            self._mismatch = str(error)
            self._unsafe = isinstance(error, UnsafeServer)
            log.error("%s", error)
        self._examined = True

    async def _compare(self) -> None:
        """Publish how far this process's clock is from Redis's."""
        while True:
            with contextlib.suppress(StateError):
                self.offset_ms = await self.clocks.measure()
                await self.clocks.say(self.offset_ms, self._redis_ms())
            await asyncio.sleep(_COMPARE_SECONDS)

    async def offsets(self) -> dict[str, int]:
        """Milliseconds by which the clock of each live process is ahead of Redis's; empty without Redis."""
        try:
            return await self.clocks.everywhere(self._redis_ms())
        except StateError:
            return {}

    def _redis_ms(self) -> int:
        return self.clock.now_ms() - (self.offset_ms or 0)

    async def _watch_tokens(self) -> None:
        """A token that is revoked ends its open connections, too."""
        while True:
            await asyncio.sleep(_TOKENS_SECONDS)
            self.hub.expel(self.gate.stands)

    async def _follow(self) -> None:
        await self.reader.ready()
        self.hub.followed()

    def _entries(self, shard: int, entries: Sequence[FeedEntry]) -> None:
        committed_ms = entries[-1].at_ms + (self.offset_ms or 0)
        self.counters.feed_lag.observe((self.clock.now_ms() - committed_ms) / 1000)
        for entry in entries:
            if entry.kind == "event":
                self.hub.publish("own", entry.body, entry.key.emitter)
            elif entry.kind == "foreign":
                self.hub.publish("foreign", entry.body, entry.key.emitter)
            elif entry.kind == "command":
                target, body = unpack(entry.body)
                self.hub.publish("command", body, entry.key.emitter)
                if target != OWN:
                    self.claims.deliver(target, entry.key.session, body)
            elif entry.kind == "notice":
                self.holding.wake(entry.key)
                self.web_orders.wake(entry.key)

    def _unwatched(self) -> bool:
        """Whether nobody here waits for what the feed brings."""
        return not (self.hub.watched or len(self.holding) or self.claims.held or self.web_orders.polled)

    def _gap(self, gap: Gap) -> None:
        log.warning("feed %d: %d commits were not seen%s", gap.shard, gap.missed, _restarted(gap))
        self.hub.gap(gap.missed)
        self.holding.look_soon()
        self.web_orders.look_soon()


def _restarted(gap: Gap) -> str:
    return ", the server was emptied" if gap.restarted else ""
