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
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._received += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._received > HEAD_BYTES:
            self.send_400_response("The head of the request is too large.")
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._late)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._received = 0
        self._stop()
        super().on_headers_complete()

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > HEAD_BYTES:
            raise HeadTooLarge

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
