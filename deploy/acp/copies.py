"""Hands copies of the wire to the observer without ever making a pump wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from deploy.acp.wire import Kind, Record, encode

HELD_LIMIT = 64 * 1024 * 1024
"""Bytes that may wait for the observer; what comes beyond is dropped and counted."""


_GATHER_S = 0.005
_GATHER_BYTES = 1024 * 1024


class Copies:
    """One bounded queue for both directions, emptied by a thread of its own into the observer's pipe.

    `offer` is called by exactly one thread for each direction. Counters are each written by one thread
    only, so no lock is taken on the way of the bytes.
    """

    def __init__(self, pipe: int, *, limit: int = HELD_LIMIT, clock: Callable[[], float] = time.time) -> None:
        self._pipe = pipe
        self._limit = limit
        self._clock = clock
        self._queue: SimpleQueue[Record | None] = SimpleQueue()
        self._added = [0, 0]
        self._taken = 0
        self._lost = [0, 0]
        self._gap = [False, False]
        self._broken = False
        self._ended = False
        self._thread = threading.Thread(target=self._feed, name="copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, kind: Kind, chunk: bytes) -> None:
        """Take a copy of what is about to be passed on. `kind` is `TO_AGENT` or `TO_CLIENT`."""
        if self._broken:
            return
        now = int(self._clock() * 1000)
        if sum(self._added) - self._taken + len(chunk) > self._limit:
            self._lost[kind] += chunk.count(b"\n")
            self._gap[kind] = True
            return
        self._tell_gap(kind, now)
        self._added[kind] += len(chunk)
        self._queue.put(Record(kind, now, chunk))

    def _tell_gap(self, kind: Kind, now: int) -> None:
        if self._gap[kind]:
            self._queue.put(Record(Kind(kind + 2), now, number=self._lost[kind]))
            self._gap[kind], self._lost[kind] = False, 0

    def finish(self, exit_code: int, wait_s: float) -> None:
        """Send the rest and the end, waiting at most `wait_s` seconds; then the pipe is closed."""
        now = int(self._clock() * 1000)
        for kind in (Kind.TO_AGENT, Kind.TO_CLIENT):
            self._tell_gap(kind, now)
        self._queue.put(Record(Kind.END, now, number=exit_code))
        self._queue.put(None)
        self._thread.join(wait_s)

    def _feed(self) -> None:
        try:
            while (batch := self._gather()) is not None:
                view = memoryview(b"".join(part for record in batch for part in encode(record)))
                while view:
                    view = view[os.write(self._pipe, view) :]
                self._taken += sum(len(record.payload) for record in batch)
        except OSError:
            # The observer is gone: nothing is kept for nobody.
            self._broken = True
            while self._gather() is not None:
                pass
        finally:
            with suppress(OSError):
                os.close(self._pipe)

    def _gather(self) -> list[Record] | None:
        """What waits, after a short wait for more: one waking for many lines. None after the last."""
        record = None if self._ended else self._queue.get()
        if record is None:
            return None
        if record.kind is not Kind.END:
            time.sleep(_GATHER_S)
        batch = [record]
        size = len(record.payload)
        while size < _GATHER_BYTES:
            try:
                record = self._queue.get_nowait()
            except Empty:
                break
            if record is None:
                self._ended = True
                break
            batch.append(record)
            size += len(record.payload)
        return batch
