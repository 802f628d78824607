"""One event to many consumers of `GET /stream`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from redis import Redis

from tests.bench.events import payload
from tests.bench.figures import Figure, Missing, quantile, ratio
from tests.bench.lab import ROOT, TOKEN, Lab, Server, post

TITLE = "Fan-out: server-sent events, one process"


def consume(lab: Lab, server: Server, **wanted: int) -> dict[str, float]:
    """Run the consumers; see `tests.bench.consume`."""
    arguments = json.dumps({"port": server.port, "token": TOKEN} | wanted)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.consume", arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    lab.pin(process.pid, 1)
    output, errors = process.communicate()
    if process.returncode:
        raise Missing(f"the consumers failed: {errors.decode().strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(output)
    return result


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    redis = lab.redis()
    service = lab.service("service", redis)
    fan = lab.app("fan", "tests.bench.floors:fan")
    raw = _raw(lab, service, redis)
    feed = median(raw)
    figures = [
        Figure("post to a raw XREAD of the feed (floor), p50", feed * 1000, "ms"),
        Figure("post to a raw XREAD of the feed (floor), p99", quantile(raw, 0.99) * 1000, "ms"),
    ]
    for consumers in (50,) if lab.short else (1, 100, 500):
        ours: list[dict[str, float]] = []
        floors: list[dict[str, float]] = []
        wanted = {"consumers": consumers, "paced": lab.pick(100, 30), "burst": lab.pick(400, 100)}
        for _ in range(lab.pick(3, 1)):
            ours.append(consume(lab, service, **wanted))
            floors.append(consume(lab, fan, **wanted))
        for name, unit, scale in (("p50", "ms", 1e3), ("p99", "ms", 1e3), ("rate", "events/s delivered", 1)):
            mine, theirs = ([one[name] for one in series] for series in (ours, floors))
            label = f"{consumers} consumer{'s' * (consumers > 1)}, {name}"
            figures.append(
                Figure(label, median(mine) * scale, unit, "queues in memory, no Redis", ratio(mine, theirs))
            )
    return figures


def _raw(lab: Lab, service: Server, redis: Server) -> list[float]:
    """From the start of a post until a plain blocking XREAD of the feed has the event."""
    from state.keys import Keys

    feed = Keys("aep", 1).shard(0, "feed")
    client = Redis.from_url(redis.url, socket_timeout=None)
    taken = []
    for _ in range(lab.pick(200, 50)):
        last = client.xrevrange(feed, count=1)
        start: Any = {feed: last[0][0] if last else "0"}
        began = time.perf_counter()
        post(service, payload(700, "raw"))
        if client.xread(start, block=2000):
            taken.append(time.perf_counter() - began)
    client.close()
    if not taken:
        raise Missing("the feed stays empty")
    return taken
