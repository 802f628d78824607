"""uvicorn's HTTP protocol with the two limits it lacks: how large a request's head may be, and how slow.

Bodies have theirs in `handlers.body`. A head that arrives whole, as nearly all do, costs nothing more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024


class HeadTooLarge(Exception):
    """The request line and the headers are too large in sum; httptools turns it into its own error."""


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections that send endless heads, or theirs byte by byte."""

    head_seconds = 15.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._received = 0
        self._chunk = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._chunk = len(data)
        if self._in_head:
            self._received += self._chunk
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._received > HEAD_BYTES:
            self.send_400_response("The head of the request is too large.")
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._late)

    def on_message_begin(self) -> None:
        if not self._in_head:
            # No more of its head than this chunk can be here already.
            self._received = self._chunk
            self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        # What came in sum bounds the head, so nearly never need its parts be added up.
        if self._received > HEAD_BYTES and self._size() > HEAD_BYTES:
            raise HeadTooLarge
        self._in_head = False
        self._received = 0
        self._stop()
        super().on_headers_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
