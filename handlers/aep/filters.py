"""The `attr-match` subscription filters (AEP-0003 §6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from handlers.aep.levels import JSONObject, JSONValue, Severity
from handlers.errors import InvalidFilter

_FILTERABLE: Final = frozenset(
    {
        "id",
        "type",
        "subject",
        "source",
        "agent",
        "session",
        "run",
        "step",
        "epoch",
        "cause",
        "severity",
        "capture",
    }
)
_CARRIED: Final = frozenset({"aep", "time", "seq", "traceparent", "data"})
_DEFAULTS: Final[Mapping[str, JSONValue]] = {"severity": "info", "capture": "metadata", "epoch": 0}
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
_PATTERN = re.compile(r"(?:[a-z0-9_-]+\.)+\*")
_RANKS: Final[Mapping[JSONValue, int]] = {level.value: level.rank for level in Severity}
_TOP: Final = len(_RANKS) - 1

_Scalar = tuple[type, str | int | bool]


@dataclass(frozen=True, slots=True)
class _Predicate:
    """One member: equal to one of `equal`, or a type under one of `prefixes`, or a severity within
    `ranks`."""

    attribute: str
    equal: frozenset[_Scalar] = frozenset()
    prefixes: tuple[str, ...] = ()
    ranks: tuple[int, int] | None = None

    def matches(self, event: JSONObject) -> bool:
        value = event.get(self.attribute)
        if value is None:
            value = _DEFAULTS.get(self.attribute)
        if self.ranks is not None:
            rank = _RANKS.get(value) if isinstance(value, str) else None
            return rank is not None and self.ranks[0] <= rank <= self.ranks[1]
        if isinstance(value, str) and self.prefixes and value.startswith(self.prefixes):
            return True
        scalar = _scalar(value)
        return scalar is not None and scalar in self.equal


@dataclass(frozen=True, slots=True)
class Filter:
    """A conjunction of predicates; the empty one matches every event."""

    predicates: tuple[_Predicate, ...] = ()

    def matches(self, event: JSONObject) -> bool:
        """Whether every predicate holds for the event."""
        return all(predicate.matches(event) for predicate in self.predicates)


def parse_filter(value: JSONValue) -> Filter:
    """The filter a JSON value stands for. Raises InvalidFilter, naming the member, for anything outside
    the dialect: it fails closed, never matches all (AEP-0003 §6.2 rule 1)."""
    if not isinstance(value, dict):
        raise InvalidFilter("a filter is a JSON object")
    return Filter(tuple(_predicate(name, wanted) for name, wanted in value.items()))


def _predicate(name: str, wanted: JSONValue) -> _Predicate:
    if name in _CARRIED or not (name in _FILTERABLE or _EXTENSION.fullmatch(name)):
        raise InvalidFilter(f"{name[:40]!r} is not a filterable attribute")
    if isinstance(wanted, dict):
        if name != "severity":
            raise InvalidFilter(f"{name} takes a scalar or a list of scalars")
        return _Predicate(name, ranks=_band(wanted))
    alternatives = wanted if isinstance(wanted, list) else [wanted]
    if not alternatives:
        raise InvalidFilter(f"{name} has an empty list")
    equal: set[_Scalar] = set()
    prefixes: list[str] = []
    for alternative in alternatives:
        scalar = _scalar(alternative)
        if scalar is None:
            raise InvalidFilter(f"{name} takes strings, integers and booleans")
        if isinstance(alternative, str) and "*" in alternative:
            if name != "type" or not _PATTERN.fullmatch(alternative):
                raise InvalidFilter(
                    f"{name}: {alternative[:80]!r} is not a pattern; only type takes prefix.*"
                )
            prefixes.append(alternative[:-1])
        else:
            equal.add(scalar)
    return _Predicate(name, frozenset(equal), tuple(prefixes))


def _band(wanted: JSONObject) -> tuple[int, int]:
    if not wanted or wanted.keys() - {"gte", "lte"}:
        raise InvalidFilter("severity is compared with gte and lte")
    for level in wanted.values():
        if not isinstance(level, str) or level not in _RANKS:
            raise InvalidFilter(f"{level!r:.40} is not a severity")
    return _RANKS[wanted.get("gte", "debug")], _RANKS[wanted.get("lte", "critical")]


def _scalar(value: JSONValue) -> _Scalar | None:
    """A value that equals another only when JSON says so: `1` is `1.0` and not `true`."""
    if isinstance(value, bool | str):
        return type(value), value
    if isinstance(value, int):
        return int, value
    if isinstance(value, float) and value.is_integer():
        return int, int(value)
    return None
