"""What a process has counted and timed since it started, by name and reason."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of every histogram, seconds."""


class Histogram:
    """How often something took how long. The last bucket is for what took longer than all bounds."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one; less than nothing, as of clocks that differ, counts as nothing."""
        seconds = max(0.0, seconds)
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Counters:
    """Plain numbers that only rise. Names are dotted, such as `hooks.unstored.timeout`."""

    __slots__ = ("_values", "commit", "feed_lag", "hook")

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()
        self.hook = Histogram()
        self.commit = Histogram()
        self.feed_lag = Histogram()

    def add(self, name: str, amount: int = 1) -> None:
        self._values[name] += amount

    def stood(self, moments: int, events: int) -> None:
        """A commit stands."""
        values = self._values
        values["moments.stored"] += moments
        values["events.stored"] += events

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def snapshot(self) -> dict[str, int]:
        """All counters, sorted by name."""
        return dict(sorted(self._values.items()))
