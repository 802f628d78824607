"""The feed on its way to a relay: in order per session, at least once, confirmed before the cursor moves.

Only events of our own sessions go out. What others posted to this service is theirs to send on, and a
command would come back to us; an acknowledgement that is repeated is ours, though it travels as received.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from deploy.relay.groups import task_group
from deploy.relay.standing import SKEW_MS, Standing
from deploy.relay.transport import LeaseLate, Parcel, Transport
from handlers.aep.envelope import SEQ_ORIGIN_MS, source_uri
from handlers.counters import Counters
from handlers.delivery import Item
from state.connection import Client
from state.errors import LeaseLost, StateError
from state.feed import Batch, Cursor, FeedEntry, Gap
from state.keys import Keys, SessionKey
from state.leases import Lease, Leases
from state.replay import Replay
from state.sessions import Sessions

log = logging.getLogger(__name__)

CHUNK_EVENTS = 500
CHUNK_BYTES = 1 << 20
MISSED = "missed"
"""Among the cursors: how many commits have passed the bound of the feed unsent since the link began."""

_EVERYTHING = 1_000_000
_REMEMBERED = 100_000
_PAGE = 500
_PAUSES = (0.1, 2.0)


class Chunk:
    """How much is sent between two receipts; what is not confirmed is tried in smaller pieces."""

    def __init__(self) -> None:
        self.events = CHUNK_EVENTS

    def shrink(self) -> None:
        self.events = max(1, self.events // 4)

    def grow(self, confirmed: int) -> None:
        if confirmed >= self.events:
            self.events = min(CHUNK_EVENTS, self.events + 5)


class Drain:
    """One connection's worth of draining: what was confirmed stays in the cursors, under the lease."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        sessions: Sessions,
        replay: Replay,
        standing: Standing,
        leases: Leases,
        lease: Lease,
        transport: Transport,
        counters: Counters,
        chunk: Chunk,
    ) -> None:
        self._client = client
        self._keys = keys
        self._sessions = sessions
        self._replay = replay
        self._standing = standing
        self._leases = leases
        self._lease = lease
        self._transport = transport
        self._counters = counters
        self._chunk = chunk
        self._cursors: list[str] = []
        self._missed = 0
        self._level = [asyncio.Event() for _ in range(keys.shards)]
        self._tops: list[tuple[int, int]] = []
        self._touched: dict[SessionKey, int] | None = {}
        self._caught: OrderedDict[SessionKey, int] = OrderedDict()

    async def run(self, *, once: bool = False) -> None:
        """Drain until something raises; with `once`, until what the feed held at the beginning is through.

        Raises StateError, RelayError.
        """
        stored = await self._leases.cursors(self._lease.name)
        self._missed = int(stored.get(MISSED, "0"))
        self._cursors = [stored.get(str(shard), "") for shard in range(self._keys.shards)]
        self._tops = [await self._top(shard) for shard in range(self._keys.shards)]
        settled = [_place(cursor)[0] for cursor in self._cursors]
        claimed = await self._claim(settled, frozenset())
        async with task_group() as group:
            tasks = [group.create_task(self._shard(shard)) for shard in range(self._keys.shards)]
            for level in self._level:
                await level.wait()
            await self._catch_up_with_claims(claimed)
            if once:
                for task in tasks:
                    task.cancel()

    async def _claim(self, settled_ms: Sequence[int | None], known: frozenset[SessionKey]) -> set[SessionKey]:
        claimed: set[SessionKey] = set()
        parcels: list[Parcel] = []
        async for key, parcel in self._standing.earliest(settled_ms):
            if key not in known:
                claimed.add(key)
                parcels.append(parcel)
            if len(parcels) >= self._chunk.events:
                await self._deliver(parcels, "relay.claims")
                parcels = []
        await self._deliver(parcels, "relay.claims")
        return claimed

    async def _catch_up_with_claims(self, claimed: set[SessionKey]) -> None:
        """The relay has all: claim the sessions that had nothing to say, and repeat open requests."""
        touched, self._touched = self._touched or {}, None
        await self._claim([None] * self._keys.shards, frozenset(claimed | touched.keys()))
        parcels = []
        async for parcel in self._standing.waiting():
            if parcel.seq < touched.get(parcel.key, parcel.seq + 1):
                parcels.append(parcel)
        for start in range(0, len(parcels), self._chunk.events):
            await self._deliver(parcels[start : start + self._chunk.events], "relay.attention")

    async def _shard(self, shard: int) -> None:
        cursor = Cursor(self._client, self._keys, shard, self._cursors[shard])
        pause = _PAUSES[0]
        if _place(self._cursors[shard]) >= self._tops[shard]:
            self._level[shard].set()
        try:
            while True:
                try:
                    batch = await cursor.read()
                except StateError as error:
                    # The lease decides how long Redis may be away.
                    log.info("the feed cannot be read: %s", error)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, _PAUSES[1])
                    continue
                pause = _PAUSES[0]
                await self._take(shard, batch)
        finally:
            await cursor.close()

    async def _take(self, shard: int, batch: Batch) -> None:
        if batch.gap is not None:
            await self._gap(batch.gap)
        entries = batch.entries
        chunk: list[Parcel] = []
        size = 0
        done: str | None = None
        for number, entry in enumerate(entries):
            parcel = self._parcel(entry)
            if parcel is not None:
                chunk.append(parcel)
                size += len(parcel.body)
            if number + 1 == len(entries) or entries[number + 1].cursor != entry.cursor:
                done = entry.cursor
            if len(chunk) >= self._chunk.events or size >= CHUNK_BYTES:
                await self._deliver(chunk, "relay.sent")
                chunk, size = [], 0
                if done is not None:
                    await self._move(shard, done)
        await self._deliver(chunk, "relay.sent")
        if done is not None and done != self._cursors[shard]:
            await self._move(shard, done)
        if not entries or _place(self._cursors[shard]) >= self._tops[shard]:
            self._level[shard].set()

    def _parcel(self, entry: FeedEntry) -> Parcel | None:
        if entry.kind == "event":
            if entry.seq <= self._caught.get(entry.key, -1):
                return None
            self._caught.pop(entry.key, None)
            if self._touched is not None:
                self._touched.setdefault(entry.key, entry.seq)
            return Parcel(entry.key, entry.seq, entry.body)
        if entry.kind == "foreign" and _is_ours(entry):
            return Parcel(entry.key, 0, entry.body)
        return None

    async def _gap(self, gap: Gap) -> None:
        """The feed went on without us: send what the replay streams still hold of that time."""
        self._counters.add("relay.missed", gap.missed)
        self._missed += gap.missed
        since_ms = max(0, _place(self._cursors[gap.shard])[0] - SKEW_MS)
        log.warning(
            "feed %d: %d commits passed its bound unsent%s; sending what the replay streams hold",
            gap.shard,
            gap.missed,
            ", and the server lost some" if gap.restarted else "",
        )
        sent = 0
        async for parcels in self._held(gap.shard, since_ms):
            await self._deliver(parcels, "relay.caught_up")
            sent += len(parcels)
            self._caught[parcels[-1].key] = parcels[-1].seq
            while len(self._caught) > _REMEMBERED:
                self._caught.popitem(last=False)
        log.warning("feed %d: %d events sent from the replay streams", gap.shard, sent)
        await self._store({MISSED: str(self._missed)})

    async def _held(self, shard: int, since_ms: int) -> AsyncIterator[list[Parcel]]:
        """The events of a shard's sessions since then, session by session. Raises StateError."""
        active = await self._sessions.sessions(shard, since_ms=since_ms, limit=_EVERYTHING)
        for key in reversed(active):
            after = start = max(-1, since_ms - SEQ_ORIGIN_MS - 1)
            while True:
                page = await self._replay.read(key, after, min(_PAGE, self._chunk.events))
                if after == start and page.exhausted(after):
                    # What the relay had already may be among it, so this is no count of losses.
                    self._counters.add("relay.exhausted")
                if not page.entries:
                    break
                yield [Parcel(key, seq, body) for seq, body in page.entries]
                after = page.entries[-1][0]

    async def _deliver(self, parcels: Sequence[Parcel], counter: str) -> None:
        if not parcels:
            return
        try:
            await self._transport.deliver(parcels)
        except Exception:
            # Too slow for so many, or cut off in their midst.
            self._chunk.shrink()
            raise
        self._chunk.grow(len(parcels))
        self._counters.add(counter, len(parcels))

    async def _move(self, shard: int, cursor: str) -> None:
        await self._store({str(shard): cursor})
        self._cursors[shard] = cursor

    async def _store(self, cursors: dict[str, str]) -> None:
        while True:
            try:
                await self._leases.move(self._lease, cursors)
                return
            except LeaseLost as error:
                raise LeaseLate(str(error)) from None
            except StateError as error:
                log.info("the cursors cannot be stored: %s", error)
                await asyncio.sleep(_PAUSES[0])

    async def _top(self, shard: int) -> tuple[int, int]:
        feed = self._keys.shard(shard, "feed")
        rows = await self._client.call(feed, "XREVRANGE", feed, "+", "-", "COUNT", 1, lane="read")
        return _place(rows[0][0].decode()) if rows else (0, 0)


def _place(cursor: str) -> tuple[int, int]:
    ms, _, seq = cursor.partition("/")[0].partition("-")
    return int(ms or 0), int(seq or 0)


def _is_ours(entry: FeedEntry) -> bool:
    key = entry.key
    try:
        event = Item.parse("foreign", entry.body).event
    except ValueError:
        return False
    return event.get("source") == source_uri(key.emitter, key.agent, key.session)
