"""The id by which a request is found again in the logs: the sender's own where that can be an id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextvars import ContextVar

HEADER = b"x-request-id"

_SAFE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")

current: ContextVar[bytes | None] = ContextVar("request_id", default=None)
"""The id of the request that is being handled."""


def given(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The sender's id, unless it could be anything else than an id."""
    for name, value in headers:
        if name == HEADER:
            return value if _SAFE.fullmatch(value) else None
    return None


def made() -> bytes:
    """A new id, 16 hex digits."""
    return os.urandom(8).hex().encode()
