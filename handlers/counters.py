"""What a process has counted since it started, by name and reason."""

from __future__ import annotations

from collections import Counter


class Counters:
    """Plain numbers that only rise. Names are dotted, such as `hooks.unstored.timeout`."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self._values[name] += amount

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def snapshot(self) -> dict[str, int]:
        """All counters, sorted by name."""
        return dict(sorted(self._values.items()))
