"""Calls that had their terminal long ago: a few characters each, enough to know one again.

A call is eight characters of one text, the oldest first: two for its run, six for itself, 36 bits of a
digest. So a terminal of a call that was never seen is taken for a repeated one in one of 10^8 cases.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b

_RUN, _CALL = 2, 6
_SIZE = _RUN + _CALL


def added(past: str, run: str | None, call: str, limit: int) -> str:
    """`past` with a call of that run (None: of no run), the newest `limit` calls of it."""
    return (past + _run(run or "") + _digest(call)[:_CALL])[-_SIZE * limit :]


def holds(past: str, run: str | None, call: str) -> bool:
    """Whether the call had a terminal in that run; with None, in any."""
    if not past:
        return False
    wanted = _digest(call)[:_CALL]
    skip = _RUN
    if run is not None:
        wanted, skip = _run(run) + wanted, 0
    at = past.find(wanted)
    while at >= 0 and at % _SIZE != skip:
        at = past.find(wanted, at + 1)
    return at >= 0


@lru_cache(256)
def _run(run: str) -> str:
    return _digest(run)[:_RUN]


def _digest(text: str) -> str:
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=6).digest()).decode()
