"""Replicas and shards: does adding one add anything, and where Redis itself ends."""

from __future__ import annotations

from statistics import median

from tests.bench.figures import Figure, ratio
from tests.bench.lab import Lab
from tests.bench.process import Series, take

TITLE = "Replicas and shards, c=32"


def run(lab: Lab) -> list[Figure]:
    """Measure it; the replicas take cores 0, 2, … so that Redis and the load keep theirs."""
    redis = lab.redis()
    layouts = {}
    everything = ((1, 1), (2, 1), (1, 4), (2, 4), (1, 16), (2, 16))
    for replicas, shards in everything[:3] if lab.short else everything:
        name = f"{replicas} replica{'s' * (replicas > 1)}, {shards} shard{'s' * (shards > 1)}"
        settings = {"AEP_SHARDS": str(shards), "AEP_REDIS_PREFIX": f"r{replicas}s{shards}"}
        layouts[name] = [
            lab.service(f"r{replicas}s{shards}n{number}", redis, core=number * 2, settings=settings)
            for number in range(replicas)
        ]
    series = {name: Series() for name in layouts}
    for _ in range(lab.pick(4, 2)):
        for name, servers in layouts.items():
            take(
                lab,
                servers,
                redis,
                series[name],
                connections=32,
                sessions=1000,
                seconds=lab.pick(15, 10) / 10,
            )
    base = series["1 replica, 1 shard"]
    figures = [Figure("1 replica, 1 shard (floor)", median(base.rate), "hooks/s")]
    for name, one in series.items():
        if one is not base:
            share = ratio(one.rate, base.rate)
            figures.append(Figure(name, median(one.rate), "hooks/s", "1 replica, 1 shard", share))
    for name, one in series.items():
        share = ratio(one.redis, base.redis)
        figures.append(Figure(f"Redis, per event: {name}", median(one.redis) * 1e6, "µs", "", share))
    figures.append(Figure("one Redis could take, 1 shard", 1 / median(base.redis), "events/s"))
    if len(lab.cores) < 4:
        figures.append(Figure("cores here: replicas, Redis and the load share them", len(lab.cores), "cores"))
    return figures
