"""What waits to be delivered: bounded, in order, the least telling lost first."""

from __future__ import annotations

import threading
from collections import deque

HELD_LIMIT = 16 * 1024 * 1024
"""Bytes that may wait for the service."""

BATCH_LINES = 512
BATCH_BYTES = 1024 * 1024
_CHUNKS = (b'"agent_message_chunk"', b'"agent_thought_chunk"')


class Outbox:
    """Lines between two threads. Message chunks give way at half the limit, the oldest lines at the limit."""

    def __init__(self, limit: int = HELD_LIMIT) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._flying = 0
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self.lost = 0

    def put(self, line: bytes) -> None:
        with self._changed:
            held = self._size + self._flying
            if held > self._limit // 2 and any(word in line[:1024] for word in _CHUNKS):
                self.lost += 1
                return
            self._lines.append(line)
            self._size += len(line)
            while self._size + self._flying > self._limit and len(self._lines) > 1:
                self._size -= len(self._lines.popleft())
                self.lost += 1
            if len(self._lines) == 1 or self._enough():
                # Nobody is woken for each of many lines.
                self._changed.notify()

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._closed.set()
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def take(self, linger_s: float) -> list[bytes]:
        """The next batch, after lingering for more to come; empty when closed and all is taken."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lines) or self.closed)
            self._changed.wait_for(self._enough, linger_s)
            batch: list[bytes] = []
            size = 0
            while self._lines and len(batch) < BATCH_LINES:
                if batch and size + len(self._lines[0]) > BATCH_BYTES:
                    break
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            self._size -= size
            self._flying = size
            return batch

    def _enough(self) -> bool:
        return self.closed or self._size > BATCH_BYTES // 4 or len(self._lines) >= BATCH_LINES

    def delivered(self) -> None:
        """The last batch has arrived, or is given up."""
        with self._changed:
            self._flying = 0

    def pause(self, seconds: float) -> None:
        """Wait between attempts; the end cuts it short."""
        self._closed.wait(seconds)
