"""Legal type names for whatever an agent calls its moments (AEP-0001 §6)."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

_TOKEN_LIMIT: Final = 64
_TOKENS_LIMIT: Final = 8
_KEPT: Final = 128

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ILLEGAL = re.compile(r"[^a-z0-9_]+")
_ILLEGAL_VENDOR = re.compile(r"[^a-z0-9_-]+")


def snake(name: str) -> str:
    """`SomeNewHook` → `some_new_hook`: one legal token of a type, for any string.

    What is not a letter or digit of ASCII becomes `_`; a name without any is `unknown`; one above 64
    characters is cut and ends in a short digest, so that different names stay different.
    """
    return _bounded(_ILLEGAL.sub("_", _HUMP.sub("_", name[: 4 * _TOKEN_LIMIT]).lower()), name)


def extension_type(vendor: str, *parts: str) -> str:
    """A legal vendor type `x.{vendor}.{category}.{rest}` for any strings.

    Dots in `parts` separate tokens too; empty ones are left out. A single token gains `event`, because a
    vendor type needs two behind the vendor (as the ACP mapping of AEP-0002 A.13 does it).
    """
    # Most are said over and over; long ones must not stay in memory.
    if sum(map(len, parts)) <= _KEPT and len(vendor) <= _KEPT:
        return _known_type(vendor, parts)
    return _extension_type(vendor, parts)


def _extension_type(vendor: str, parts: tuple[str, ...]) -> str:
    tokens = [snake(token) for part in parts for token in part.split(".", _TOKENS_LIMIT) if token]
    if not tokens:
        tokens = ["unknown"]
    if len(tokens) == 1:
        tokens.append("event")
    if len(tokens) > _TOKENS_LIMIT:
        tokens[_TOKENS_LIMIT - 1 :] = [snake("_".join(tokens[_TOKENS_LIMIT - 1 :]))]
    owner = _bounded(_ILLEGAL_VENDOR.sub("-", vendor[: 4 * _TOKEN_LIMIT].lower()), vendor, strip="-_")
    return ".".join(["x", owner, *tokens])


_known_type = lru_cache(maxsize=1024)(_extension_type)


def _bounded(token: str, original: str, strip: str = "_") -> str:
    token = token.strip(strip)
    if len(token) > _TOKEN_LIMIT or len(original) > 4 * _TOKEN_LIMIT:
        mark = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"{token[: _TOKEN_LIMIT - 9].rstrip(strip)}_{mark}".lstrip(strip)
    return token or "unknown"
