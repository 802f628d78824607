"""Does an event cost more when there are many sessions, or when its session is long?"""

from __future__ import annotations

from statistics import median

from tests.bench.figures import Figure, ratio
from tests.bench.lab import Lab
from tests.bench.process import Series, take

TITLE = "Many sessions, long sessions: processor time of service and Redis per event"


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    return [*_count(lab), *_length(lab)]


def _count(lab: Lab) -> list[Figure]:
    """Worlds of their own, each with so many sessions before the measured ones."""
    worlds = {}
    for size in (0, 1_000) if lab.short else (0, 1_000, 10_000, 100_000):
        redis = lab.redis(f"many{size}")
        service = lab.service(f"many{size}s", redis)
        if size:
            lab.load(service, connections=32, sessions=size, total=size, name="f")
        worlds[size] = (service, redis)
    series = {size: Series() for size in worlds}
    for _ in range(lab.pick(5, 2)):
        for size, (service, redis) in worlds.items():
            take(
                lab,
                [service],
                redis,
                series[size],
                connections=8,
                sessions=64,
                seconds=lab.pick(15, 7) / 10,
                name="m",
            )
    return _figures(series, "sessions in Redis", series[0])


def _length(lab: Lab) -> list[Figure]:
    """Four sessions of each length."""
    redis = lab.redis("long")
    service = lab.service("long-service", redis)
    lengths = (10, 1_000) if lab.short else (10, 1_000, 10_000)
    for length in lengths:
        lab.load(service, connections=4, sessions=4, total=4 * length, name=f"l{length}")
    series = {length: Series() for length in lengths}
    for _ in range(lab.pick(5, 2)):
        for length in lengths:
            # A short burst: the measured events lengthen the sessions too.
            take(
                lab,
                [service],
                redis,
                series[length],
                connections=8,
                sessions=4,
                seconds=lab.pick(15, 7) / 10,
                name=f"l{length}",
            )
    return _figures(series, "events in the session", series[lengths[0]])


def _figures(series: dict[int, Series], what: str, base: Series) -> list[Figure]:
    figures = []
    floor = [service + redis for service, redis in zip(base.cpu, base.redis, strict=True)]
    for size, one in series.items():
        both = [service + redis for service, redis in zip(one.cpu, one.redis, strict=True)]
        share = None if one is base else ratio(both, floor)
        target = "" if one is base else "<= 1.1"
        figures.append(
            Figure(
                f"{size:,} {what}", median(both) * 1e6, "µs", "" if one is base else "first", share, target
            )
        )
    return figures
