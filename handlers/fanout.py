"""From one feed to many consumers: the hub of a process.

The hub parses an entry of the feed once, and asks once for all subscriptions that want the same, in the same
form, whether and how they have it. A subscription that resumes
holds its live events back until its replay is through, and then drops those that the replay already gave, so
that the hand-over has neither a gap nor a repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from handlers.aep.filters import Filter
from handlers.aep.levels import Capture
from handlers.counters import Counters
from handlers.delivery import Item, Kind, Outbox
from handlers.tokens import Principal

log = logging.getLogger(__name__)

_HELD_LIMIT = 50_000
_OVERLAP_SECONDS = 5.0

Encode = Callable[[Item, Capture | None], bytes]


class Consumer(Protocol):
    """What the hub tells a consumer beside its events."""

    principal: Principal
    """As whom it was let in."""

    def drain(self) -> None:
        """The process is stopping."""

    def expel(self) -> None:
        """Its token is no longer what it was."""

    def lag(self) -> None:
        """The feed lost something: the consumer must come back and resume."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which events, and in which form; `scope` is the only emitter whose events may be had, None for all."""

    filter: Filter
    ceiling: Capture | None
    scope: str | None
    encode: Encode

    def form(self, item: Item) -> bytes | None:
        """The event as it is wished for; None where it is not."""
        if self.scope not in (None, item.emitter) or not self.filter.matches(item.event):
            return None
        return self.encode(item, self.ceiling)


class Subscription:
    """One filter and one ceiling of one consumer."""

    __slots__ = (
        "_held",
        "_ids",
        "_outbox",
        "_positions",
        "consumer",
        "wish",
    )

    def __init__(
        self,
        consumer: Consumer,
        outbox: Outbox,
        encode: Encode,
        filter: Filter,
        ceiling: Capture | None,
        *,
        scope: str | None = None,
        holding: bool = False,
    ) -> None:
        """`scope` is the only emitter whose events it may have, None for those of all."""
        self.consumer = consumer
        self.wish = Wish(filter, ceiling, scope, encode)
        self._outbox = outbox
        self._held: list[Item] | None = [] if holding else None
        self._positions: dict[str, tuple[int, int]] = {}
        self._ids: set[tuple[str, str]] = set()

    def offer(self, item: Item, payload: bytes) -> None:
        """A live event that is wanted, rendered: into the outbox, or held back while the replay runs."""
        if self._held is None:
            if (self._ids or self._positions) and self._replayed(item):
                return
            self.deliver(item, payload)
        elif len(self._held) < _HELD_LIMIT:
            self._held.append(item)
        else:
            self._outbox.overflow()

    def deliver(self, item: Item, payload: bytes) -> None:
        """Put a live event, rendered, where the consumer takes it from."""
        self._outbox.put(item.rank, payload)

    def replay(self, item: Item) -> bytes | None:
        """A replayed event, rendered; None when the filter does not want it."""
        position = item.position
        if item.kind == "own" and position is not None:
            self._positions[item.identity[0]] = position
        else:
            self._ids.add(item.identity)
        return self.wish.form(item)

    def release(self) -> None:
        """The replay is through: give out what was held back and is not known from it."""
        held, self._held = self._held or [], None
        for item in held:
            if not self._replayed(item):
                payload = self.wish.form(item)
                assert payload is not None, "what is held back is wanted"
                self.deliver(item, payload)

    def settle(self) -> None:
        """The feed has passed everything that the replay can have given: compare no more."""
        self._ids.clear()
        self._positions.clear()

    def _replayed(self, item: Item) -> bool:
        position = item.position
        if item.kind == "own" and position is not None:
            known = self._positions.get(item.identity[0])
            return known is not None and position <= known
        if item.identity in self._ids:
            # Once: when it comes again, somebody has sent it again, and that must get through (AEP-0003 §5).
            self._ids.remove(item.identity)
            return True
        return False


class Hub:
    """All subscriptions of a process, fed by its one reader a shard."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._subscriptions: dict[Wish, dict[Subscription, None]] = {}
        self._members: dict[Consumer, None] = {}
        self._taps: list[Callable[[Item], None]] = []
        self._following = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._subscriptions.values()))

    def add(self, subscription: Subscription) -> None:
        """Live events go there from now on."""
        self._subscriptions.setdefault(subscription.wish, {})[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """No more live events; removing twice is fine."""
        alike = self._subscriptions.get(subscription.wish, {})
        alike.pop(subscription, None)
        if not alike:
            self._subscriptions.pop(subscription.wish, None)

    def settle(self, subscription: Subscription) -> None:
        """Its replay is through; soon the feed has passed what both may have given."""
        subscription.release()
        asyncio.get_running_loop().call_later(_OVERLAP_SECONDS, subscription.settle)

    def join(self, consumer: Consumer) -> None:
        """A consumer that may have no subscription, or many; it wants to be told when the process stops."""
        self._members[consumer] = None

    def leave(self, consumer: Consumer) -> None:
        """It has gone."""
        self._members.pop(consumer, None)

    def tap(self, listener: Callable[[Item], None]) -> None:
        """Show every live event to `listener` too, whatever consumers there are. It must be quick."""
        self._taps.append(listener)

    def followed(self) -> None:
        """The readers stand at a known place of the feed: nothing from now on can be missed."""
        self._following.set()

    async def ready(self, seconds: float) -> bool:
        """Whether a consumer that is added now will miss nothing; waits for that at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._following.wait()
        except TimeoutError:
            return False
        return True

    @property
    def watched(self) -> bool:
        """Whether anybody is shown what the feed brings."""
        return bool(self._subscriptions or self._taps)

    @property
    def consumers(self) -> int:
        """How many consumers are connected."""
        return len(self._consumers())

    def publish(self, kind: Kind, body: bytes, emitter: str) -> None:
        """Offer one event of the feed, of a session of `emitter`, to everyone who may have it."""
        self._counters.add("feed.events")
        if not self.watched:
            return
        try:
            item = Item.parse(kind, body, emitter)
        except ValueError:
            log.warning("an entry of the feed is no event")
            self._counters.add("feed.malformed")
            return
        for listener in self._taps:
            listener(item)
        for wish, alike in tuple(self._subscriptions.items()):
            payload = wish.form(item)
            if payload is not None:
                for subscription in tuple(alike):
                    subscription.offer(item, payload)

    def gap(self, missed: int) -> None:
        """Entries of the feed are lost to this process: every consumer must come back and resume."""
        self._counters.add("feed.missed", missed)
        for consumer in self._consumers():
            consumer.lag()

    def expel(self, stands: Callable[[Principal], bool]) -> None:
        """End every consumer whose token has been revoked or changed."""
        for consumer in self._consumers():
            if not stands(consumer.principal):
                self._counters.add("consumers.expelled")
                consumer.expel()

    def drain(self) -> None:
        """Tell every consumer that the process is stopping."""
        for consumer in self._consumers():
            consumer.drain()

    def _consumers(self) -> list[Consumer]:
        found = dict.fromkeys(entry.consumer for alike in self._subscriptions.values() for entry in alike)
        return list(found | self._members)
