"""Whether one event is valid: its envelope (AEP-0001 §5) and its payload (AEP-0002 §5)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity
from handlers.aep.registry import TYPES, is_legal, payload_of, scope_of
from handlers.aep.shapes import Shape

_REQUIRED: Final = ("aep", "id", "type", "time", "source", "agent")
_STRINGS: Final = frozenset(
    {"id", "type", "subject", "time", "source", "agent", "session", "run", "step", "cause", "traceparent"}
)
_COUNTS: Final = frozenset({"seq", "epoch"})
_WORDS: Final = {
    "severity": frozenset(level.value for level in Severity),
    "capture": frozenset(level.value for level in Capture),
}
_RULES: Final = {"severity": "AEP-0001 §8.1", "capture": "AEP-0001 §8.2"}

_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:)(\d{2})(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f<>\"]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """What breaks which rule, and where: `path` is an attribute or a dotted path under `data`."""

    rule: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} ({self.rule})" if self.path else f"{self.message} ({self.rule})"


def check_event(event: JSONValue) -> list[Problem]:
    """Every problem of one event, none for a valid one. Unknown types and attributes are legal."""
    if not isinstance(event, dict):
        return [Problem("AEP-0001 §5", "", "an event is a JSON object")]
    return list(_envelope(event))


def check_payload(event_type: str, data: JSONValue) -> list[Problem]:
    """The problems of a payload; types without a schema take any object."""
    shape = payload_of(event_type)
    if shape is None:
        return [] if isinstance(data, dict) else [Problem("AEP-0001 §5.1 #17", "data", "is not an object")]
    return list(_value(data, shape, "data"))


def is_valid(event_type: str, data: JSONObject) -> bool:
    """Whether `check_payload` finds nothing, for the path of every event of ours: it names no problem."""
    spec = TYPES.get(event_type)
    return spec is None or spec.payload is None or _fits(data, spec.payload)


def is_time(text: str) -> bool:
    """Whether a text is an RFC 3339 timestamp with its zone, a leap second included."""
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    day, clock, second = match.groups()
    try:
        datetime.fromisoformat(f"{day}T{clock}{'59' if second == '60' else second}")
    except ValueError:
        return False
    return True


def _envelope(event: JSONObject) -> Iterator[Problem]:
    for name in _REQUIRED:
        if name not in event:
            yield Problem("AEP-0001 §5.1", name, "is missing")
    for name, value in event.items():
        yield from _attribute(name, value)
    event_type = event.get("type")
    if isinstance(event_type, str):
        yield from _scope(event, event_type)
        if "data" in event:
            yield from check_payload(event_type, event["data"])


def _attribute(name: str, value: JSONValue) -> Iterator[Problem]:
    if name == "aep":
        if value != "0.1":
            yield Problem("AEP-0001 §5.1 #1", name, "is not 0.1")
    elif name in _STRINGS:
        if not isinstance(value, str) or not value:
            yield Problem("AEP-0001 §5.1", name, "is not a string, or empty")
        else:
            yield from _text(name, value)
    elif name in _COUNTS:
        if not _is_integer(value) or value < 0:  # type: ignore[operator]
            yield Problem("AEP-0001 §5.1", name, "is not an integer from 0")
    elif name in _WORDS:
        if not isinstance(value, str) or value not in _WORDS[name]:
            yield Problem(_RULES[name], name, f"is not one of {', '.join(sorted(_WORDS[name]))}")
    elif name == "data":
        if not isinstance(value, dict):
            yield Problem("AEP-0001 §5.1 #17", name, "is not an object")
    elif not _ATTRIBUTE.fullmatch(name):
        yield Problem("AEP-0001 §5.4", name[:40], "is not a name of 1 to 20 letters a-z and digits")
    elif not isinstance(value, str | bool) and not _is_integer(value):
        yield Problem("AEP-0001 §5.4", name, "is not a string, integer or boolean")


def _text(name: str, value: str) -> Iterator[Problem]:
    if name == "type" and not is_legal(value):
        yield Problem("AEP-0001 §6", name, f"{value[:80]!r} is not a legal type")
    elif name == "time" and not is_time(value):
        yield Problem("AEP-0001 §5.1 #5", name, "is not an RFC 3339 time with its zone")
    elif name == "source" and not _URI.fullmatch(value):
        yield Problem("AEP-0001 §5.1 #6", name, "is not a URI")
    elif name == "traceparent" and not _TRACEPARENT.fullmatch(value):
        yield Problem("AEP-0001 §5.1 #14", name, "is not a W3C traceparent")


def _scope(event: JSONObject, event_type: str) -> Iterator[Problem]:
    scope = scope_of(event_type)
    if scope == "agent":
        for name in ("session", "run", "step", "seq"):
            if name in event:
                yield Problem("AEP-0001 §5.2", name, "does not belong to an agent event")
        return
    if "session" not in event:
        yield Problem("AEP-0001 §5.2", "session", "is missing")
    if scope == "command" and "seq" in event:
        yield Problem("AEP-0001 §5.2", "seq", "belongs to the session's owner alone")
    elif scope == "session" and "seq" not in event:
        yield Problem("AEP-0001 §5.2", "seq", "is missing")


def _value(value: JSONValue, shape: Shape, path: str) -> Iterator[Problem]:
    if not _is_kind(value, shape):
        yield Problem("AEP-0002 §5", path, f"is not {_wanted(shape)}")
    elif isinstance(value, dict):
        yield from _members(value, shape, path)
    elif isinstance(value, list) and shape.items is not None:
        for index, item in enumerate(value):
            yield from _value(item, shape.items, f"{path}[{index}]")


def _members(value: JSONObject, shape: Shape, path: str) -> Iterator[Problem]:
    for name, member in shape.fields.items():
        if name in value:
            yield from _value(value[name], member, f"{path}.{name}")
        elif member.required:
            yield Problem("AEP-0002 §5", f"{path}.{name}", "is missing")
    for name, word, needed in shape.needed_with:
        if value.get(name) == word and needed not in value:
            yield Problem("AEP-0002 §5.2", f"{path}.{needed}", f"is missing where {name} is {word}")


def _fits(value: JSONValue, shape: Shape) -> bool:
    if not _is_kind(value, shape):
        return False
    if isinstance(value, dict):
        fields, found = shape.fields, 0
        for name, member in value.items():
            known = fields.get(name)
            if known is None:
                continue
            plain = known.plain
            if not (_fits(member, known) if plain is None else isinstance(member, plain)):
                return False
            found += known.required
        if found != shape.needed:
            return False
        return not shape.needed_with or all(
            value.get(name) != word or needed in value for name, word, needed in shape.needed_with
        )
    if isinstance(value, list) and shape.items is not None:
        items = shape.items
        return all(_fits(item, items) for item in value)
    return True


def _is_kind(value: JSONValue, shape: Shape) -> bool:
    if shape.words:
        return isinstance(value, str) and value in shape.words
    kind = _KINDS.get(shape.kind)
    if kind is not None:
        return isinstance(value, kind)
    if shape.kind == "integer":
        return _is_integer(value) and _in_bounds(value, shape)
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and _in_bounds(value, shape)
    )


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "any": object,
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "object|string": (dict, str),
}


def _wanted(shape: Shape) -> str:
    if shape.words:
        return f"one of {', '.join(sorted(shape.words))}"
    bounds = f" from {shape.minimum}" if shape.minimum is not None else ""
    return f"{shape.kind}{bounds}{f' to {shape.maximum}' if shape.maximum is not None else ''}"


def _is_integer(value: JSONValue) -> bool:
    # JSON knows one kind of number: 1.0 is an integer
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _in_bounds(value: JSONValue, shape: Shape) -> bool:
    assert isinstance(value, int | float)
    return (shape.minimum is None or value >= shape.minimum) and (
        shape.maximum is None or value <= shape.maximum
    )
