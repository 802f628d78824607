"""The id by which a request is found again in the logs: the sender's own where that can be an id."""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.head import Head, head_of

HEADER = b"x-request-id"

_SAFE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")

current: ContextVar[bytes | None] = ContextVar("request_id", default=None)
"""The id of the request that is being handled."""


def given(head: Head) -> bytes | None:
    """The sender's id, unless it could be anything else than an id."""
    value = head.get(HEADER)
    return value if value is not None and _SAFE.fullmatch(value) else None


def made() -> bytes:
    """A new id, 16 hex digits."""
    return os.urandom(8).hex().encode()


class Identified:
    """Middleware: every request has an id of its own, which its answer repeats."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = given(head_of(scope)) or made()
        current.set(identity)
        mine = (HEADER, identity)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and mine not in message["headers"]:
                message = {**message, "headers": [*message["headers"], mine]}
            await send(message)

        await self._app({**scope, "headers": [mine, *scope["headers"]]}, receive, tell)
