"""Ids and names of others, in the short forms in which a state keeps them."""

from __future__ import annotations

import re
from hashlib import sha256

from handlers.aep.levels import JSONValue
from handlers.lifecycle.bounds import WORD

Turn = int | str | None

_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def key(value: JSONValue) -> str | None:
    """A vendor's id as a key: itself when short and plain, else a digest of it. None: no id."""
    if not isinstance(value, str) or not value:
        return None
    if _PLAIN.fullmatch(value):
        return value
    return "#" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def clip(text: str, size: int = WORD) -> str:
    """A name within `size` bytes of JSON, without characters that a name has no use for."""
    plain = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text[:size])
    return plain.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def turn_of(value: JSONValue) -> Turn:
    """A vendor's turn id, which is a number or, in older payloads, a word."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else key(str(value))
    return key(value)
