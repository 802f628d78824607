"""The live feed in a process: one reader for all who listen there."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from state.connection import Client
from state.cursor import Batch, Cursor, FeedEntry, Gap
from state.errors import StateError
from state.keys import Keys

__all__ = ["Batch", "Cursor", "FeedEntry", "FeedReader", "Gap"]

log = logging.getLogger(__name__)

_BACKOFF = (0.05, 2.0)
_IDLE_SECONDS = 0.01
_SPAN_SECONDS = 0.1
_MUCH = 16


class FeedReader:
    """Reads every shard's feed of a process and hands the entries to one listener.

    `on_entries(shard, entries)` and `on_gap(gap)` are called on the event loop and must return at once.
    One blocking connection per shard, whatever the number of those who listen behind the listener. Where
    much comes while `idle()` says that nobody waits for it, it is fetched a hundred times a second at most,
    which spares both sides a call for every event.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        on_entries: Callable[[int, Sequence[FeedEntry]], None],
        on_gap: Callable[[Gap], None] | None = None,
        *,
        idle: Callable[[], bool] | None = None,
        block_ms: int = 5000,
        rewind_ms: int = 5000,
    ) -> None:
        self._cursors = [
            Cursor(client, keys, shard, block_ms=block_ms, rewind_ms=rewind_ms)
            for shard in range(keys.shards)
        ]
        self._on_entries = on_entries
        self._on_gap = on_gap
        self._idle = idle
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = [asyncio.Event() for _ in self._cursors]
        self._up = [False] * len(self._cursors)
        self.missed = 0
        self.restarts = 0
        self.failures = 0

    @property
    def connected(self) -> bool:
        """Whether every shard's last read worked."""
        return all(self._up)

    def start(self) -> None:
        """Begin reading at the end of each feed, in tasks of their own."""
        for number, cursor in enumerate(self._cursors):
            self._tasks.append(asyncio.create_task(self._run(number, cursor), name=f"feed {number}"))

    async def ready(self) -> None:
        """Wait until the place in every feed is fixed: what is committed after that is handed on."""
        for event in self._settled:
            await event.wait()

    async def stop(self) -> None:
        """Stop reading and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for cursor in self._cursors:
            await cursor.close()

    async def _run(self, number: int, cursor: Cursor) -> None:
        pause = _BACKOFF[0]
        pace = _Pace()
        while True:
            try:
                await cursor.settle()
                if not self._settled[number].is_set():
                    self._settled[number].set()
                    self._up[number] = True
                batch = await cursor.read()
            except StateError as error:
                if self._up[number]:
                    log.warning("feed %d: connection lost (%s)", number, error)
                self._up[number] = False
                self.failures += 1
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _BACKOFF[1])
                continue
            self._up[number] = True
            pause = _BACKOFF[0]
            self._deliver(number, batch)
            pace.count(len(batch.entries))
            if pace.busy and self._idle is not None and self._idle():
                await asyncio.sleep(_IDLE_SECONDS)

    def _deliver(self, number: int, batch: Batch) -> None:
        try:
            if batch.gap is not None:
                self.missed += batch.gap.missed
                self.restarts += batch.gap.restarted
                if self._on_gap is not None:
                    self._on_gap(batch.gap)
            if batch.entries:
                self._on_entries(number, batch.entries)
        except Exception:
            # A listener's fault must not end the feed for all the others.
            log.exception("feed %d: a listener failed", number)


class _Pace:
    """Whether much comes: so many entries within a span."""

    def __init__(self) -> None:
        self.busy = False
        self._since = 0.0
        self._entries = 0

    def count(self, entries: int) -> None:
        now = time.monotonic()
        if now - self._since > _SPAN_SECONDS:
            self._since, self._entries = now, 0
        self._entries += entries
        self.busy = self._entries >= _MUCH
