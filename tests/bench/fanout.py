"""One event to many consumers of `GET /stream` and of `/socket`."""

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

TITLE = "Fan-out: server-sent events and WebSockets, one process"
# What each event has once: ours in its envelope, the floor's in the hook payload that it hands on.
_OURS, _FLOOR = '"session":"', '"session_id":"'

_NAMES = (
    ("p50", "ms", 1e3),
    ("p99", "ms", 1e3),
    ("rate", "events/s delivered", 1),
    ("cpu", "µs of the process for each delivery", 1e6),
)


def consume(lab: Lab, server: Server, **wanted: int | str) -> dict[str, float]:
    """Run the consumers; see `tests.bench.consume`."""
    arguments = json.dumps({"port": server.port, "token": TOKEN, "server": server.process.pid} | wanted)
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
    for binding, marks in (("SSE", ("", "")), ("WS", (_OURS, _FLOOR))):
        for consumers in (50,) if lab.short else (1, 100, 500):
            ours: list[dict[str, float]] = []
            floors: list[dict[str, float]] = []
            burst = 200 if consumers > 100 else 400
            wanted = {"consumers": consumers, "paced": lab.pick(60, 30), "burst": lab.pick(burst, 100)}
            for _ in range(lab.pick(3, 1)):
                ours.append(consume(lab, service, **wanted, socket=marks[0]))
                floors.append(consume(lab, fan, **wanted, socket=marks[1]))
            # With one consumer it is the posting that takes the time.
            for name, unit, scale in _NAMES if consumers > 1 else _NAMES[:3]:
                mine, theirs = ([one[name] for one in series] for series in (ours, floors))
                label = f"{binding}, {consumers} consumer{'s' * (consumers > 1)}, {name}"
                floor = "queues in memory, no Redis"
                figures.append(Figure(label, median(mine) * scale, unit, floor, ratio(mine, theirs)))
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
