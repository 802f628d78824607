"""Making a payload fit: writable as JSON at all, and within a size."""

from __future__ import annotations

import math
import re
from typing import Final

import orjson

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.registry import TYPES

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH: Final = 200
_CONTENT: Final = 512
"""Longer than this in bytes, a value of a type without schema counts as content."""
_STEPS: Final = ((4096, 256, 6), (512, 64, 4), (64, 16, 3), (32, 4, 3))
"""Characters of a string, members of a container, levels: tried one after the other."""


def writable(value: object, depth: int = 0) -> JSONValue:
    """A value as JSON can carry it: lone surrogates become U+FFFD, integers beyond 64 bits doubles, what is
    nested too deeply or no JSON at all becomes null."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else _double(value)
    if depth >= _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", str(k)): writable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item, depth + 1) for item in value]
    return None


def fit(event_type: str, data: JSONObject, room: int) -> JSONObject:
    """`data` in at most `room` bytes of JSON, marked `truncated`.

    First what is content goes (digests and structure stay), then long strings and long lists are cut,
    harder and harder. What does not fit even so is the mark alone.
    """
    kept = _without_content(event_type, data)
    if _size(marked := {**kept, "truncated": True}) <= room:
        return marked
    for characters, members, levels in _STEPS:
        cut = _cut(_in_order(event_type, kept), characters, members, levels)
        assert isinstance(cut, dict)
        if _size(marked := {**cut, "truncated": True}) <= room:
            return marked
    return {"truncated": True}


def _without_content(event_type: str, data: JSONObject) -> JSONObject:
    spec = TYPES.get(event_type)
    kept: JSONObject = {}
    for name, value in data.items():
        if spec and name in spec.levels:
            if spec.levels[name] is Capture.METADATA:
                kept[name] = value
        elif name.endswith("_digest") or _size(value) <= _CONTENT:
            kept[name] = value
    return kept


def _in_order(event_type: str, data: JSONObject) -> JSONObject:
    """What must stay first: required members and digests, so that cutting members takes the others."""
    spec = TYPES.get(event_type)
    first = [name for name in data if (spec and name in spec.required) or name.endswith("_digest")]
    return {name: data[name] for name in (*first, *data)}


def _cut(value: JSONValue, characters: int, members: int, levels: int) -> JSONValue:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[: characters - 1]}…"
    if isinstance(value, list):
        return [_cut(item, characters, members, levels - 1) for item in value[:members]] if levels else []
    if isinstance(value, dict):
        if not levels:
            return {}
        return {
            name[:characters]: _cut(value[name], characters, members, levels - 1)
            for name in list(value)[:members]
        }
    return value


def _size(value: JSONValue) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return len(orjson.dumps(writable(value)))


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
