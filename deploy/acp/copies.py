"""Hands copies of the wire to the observer without ever making a pump wait."""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from deploy.acp.wire import Kind, Record, encode

HELD_LIMIT = 64 * 1024 * 1024
"""Bytes that may wait for the observer; what comes beyond is dropped and counted."""

_PIPE_BYTES = 1024 * 1024
_PART = 1024 * 1024


class Copies:
    """The observer's pipe, which both pumps write to without waiting, and what did not fit into it.

    In a calm session no other thread is at work: one that is descheduled while it holds the interpreter
    would keep a pump waiting for a time slice. `offer` is called by one thread for each direction.
    """

    def __init__(self, pipe: int, *, limit: int = HELD_LIMIT, clock: Callable[[], float] = time.time) -> None:
        self._pipe = pipe
        self._limit = limit
        self._clock = clock
        self._lock = threading.Condition(threading.Lock())
        self._held: deque[bytes | memoryview] = deque()
        self._size = 0
        self._lost = [0, 0]
        self._gap = [False, False]
        self._broken = False
        self._over = False
        self._thread = threading.Thread(target=self._drain, name="copies", daemon=True)
        os.set_blocking(pipe, False)
        with suppress(AttributeError, OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def start(self) -> None:
        self._thread.start()

    def offer(self, kind: Kind, chunk: bytes) -> None:
        """Take a copy of what is about to be passed on. `kind` is `TO_AGENT` or `TO_CLIENT`."""
        now = int(self._clock() * 1000)
        with self._lock:
            if self._over or self._broken:
                return
            if self._size + len(chunk) > self._limit:
                self._lost[kind] += chunk.count(b"\n")
                self._gap[kind] = True
                return
            self._tell_gap(kind, now)
            self._put(Record(kind, now, chunk))

    def finish(self, exit_code: int, wait_s: float) -> None:
        """Send the rest and the end, waiting at most `wait_s` seconds; then the pipe is closed."""
        now = int(self._clock() * 1000)
        with self._lock:
            for kind in (Kind.TO_AGENT, Kind.TO_CLIENT):
                self._tell_gap(kind, now)
            self._put(Record(Kind.END, now, number=exit_code))
            self._over = True
            self._lock.notify()
        self._thread.join(wait_s)

    def _tell_gap(self, kind: Kind, now: int) -> None:
        if self._gap[kind]:
            self._put(Record(Kind(kind + 2), now, number=self._lost[kind]))
            self._gap[kind], self._lost[kind] = False, 0

    def _put(self, record: Record) -> None:
        """Into the pipe, where nothing waits before it and it fits; the rest waits."""
        header, body = encode(record)
        written = 0
        if not self._held:
            try:
                written = os.writev(self._pipe, (header, body))
            except BlockingIOError:
                pass
            except OSError:
                self._give_up()
                return
        if written == len(header) + len(body):
            return
        for part in (header, body):
            if written < len(part):
                self._held.append(memoryview(part)[written:])
                self._size += len(part) - written
            written = max(0, written - len(part))
        self._lock.notify()

    def _drain(self) -> None:
        """Write what waits, as the observer makes room for it, until the end."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._held or self._over or self._broken)
                if self._broken or not self._held:
                    break
            poll.poll()
            with self._lock:
                self._write()
        os.close(self._pipe)

    def _write(self) -> None:
        part = self._held[0][:_PART]
        try:
            written = os.write(self._pipe, part)
        except BlockingIOError:
            return
        except OSError:
            self._give_up()
            return
        self._size -= written
        if written == len(self._held[0]):
            self._held.popleft()
        else:
            self._held[0] = memoryview(self._held[0])[written:]

    def _give_up(self) -> None:
        """The observer is gone: nothing is kept for nobody."""
        self._broken = True
        self._held.clear()
        self._size = 0
        self._lock.notify()
