"""What waits for the disk: bounded in number and bytes, so that a slow disk slows the reading."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from handlers.delivery import Item

BATCH = 2_000
BATCH_BYTES = 4 * 1024 * 1024


class Waiting:
    """One side puts, the other takes."""

    def __init__(self, count: int = 4 * BATCH, size: int = 8 * BATCH_BYTES) -> None:
        self._items: deque[Item] = deque()
        self._size = 0
        self._limits = count, size
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, item: Item) -> None:
        """Wait for room. One item is always let in, however large."""
        async with self._changed:
            await self._changed.wait_for(self._roomy)
            self._items.append(item)
            self._size += len(item.body)
            self._changed.notify_all()

    async def close(self) -> None:
        """Nothing more will come."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def take(self, linger: float) -> list[Item]:
        """The next batch: full, or `linger` seconds after its first item, or the last; empty after that."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._items) or self._closed)
            until = time.monotonic() + linger
            while not self._full() and (left := until - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(left):
                        await self._changed.wait_for(self._full)
                except TimeoutError:
                    break
            batch: list[Item] = []
            size = 0
            while self._items and len(batch) < BATCH and (not batch or size < BATCH_BYTES):
                batch.append(self._items.popleft())
                size += len(batch[-1].body)
            self._size -= size
            self._changed.notify_all()
            return batch

    def _roomy(self) -> bool:
        count, size = self._limits
        return not self._items or (len(self._items) < count and self._size < size)

    def _full(self) -> bool:
        return self._closed or len(self._items) >= BATCH or self._size >= BATCH_BYTES
