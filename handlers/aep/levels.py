"""Capture and severity: the two ordered scales of an AEP event (AEP-0001 §8)."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"
JSONObject: TypeAlias = "dict[str, JSONValue]"


class Capture(StrEnum):
    """How much content an event carries (AEP-0001 §8.2)."""

    NONE = "none"
    METADATA = "metadata"
    REDACTED = "redacted"
    FULL = "full"

    @property
    def rank(self) -> int:
        """Position on the scale, 0 (`none`) to 3 (`full`)."""
        return _CAPTURE_RANK[self]

    def allows(self, needed: Capture) -> bool:
        """Whether a field that needs `needed` may stand in an event of this level."""
        return self.rank >= needed.rank


class Severity(StrEnum):
    """How urgent an event is (AEP-0001 §8.1)."""

    DEBUG = "debug"
    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Position on the scale, 0 (`debug`) to 5 (`critical`)."""
        return _SEVERITY_RANK[self]


_CAPTURE_RANK = {level: rank for rank, level in enumerate(Capture)}
_SEVERITY_RANK = {level: rank for rank, level in enumerate(Severity)}
