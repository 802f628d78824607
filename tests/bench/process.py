"""One process: hooks per second on the full path, and the processor time of one event."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.bench.figures import Figure, Missing, ratio
from tests.bench.lab import Lab, Server

TITLE = "One process: full path (auth, parse, map, reduce, commit in Redis)"


@dataclass(slots=True)
class Series:
    """What the rounds of one server gave; processor times in seconds per request."""

    rate: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    redis: list[float] = field(default_factory=list)


def take(lab: Lab, servers: list[Server], redis: Server, series: Series, **wanted: Any) -> None:
    """One round; raises Missing when an answer was not as it should be."""
    before = sum(server.cpu() for server in servers), redis.cpu()
    result = lab.load(*servers, warm=0.3, **wanted)
    if result["unstored"]:
        raise Missing(f"{result['unstored']} of {result['count']} events were not stored")
    series.rate.append(result["count"] / result["seconds"])
    series.p50.append(result["p50"])
    series.p99.append(result["p99"])
    series.cpu.append((sum(server.cpu() for server in servers) - before[0]) / result["all"])
    series.redis.append((redis.cpu() - before[1]) / result["all"])


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    redis = lab.redis()
    servers = {
        "echo": lab.app("echo", "tests.bench.floors:echo"),
        "script": lab.app("script", "tests.bench.floors:script", {"BENCH_REDIS_URL": redis.url}),
        "service": lab.service("service", redis),
    }
    busy = {name: Series() for name in servers}
    single = {name: Series() for name in servers}
    for turn in range(lab.pick(6, 2)):
        for name, server in servers.items():
            take(
                lab,
                [server],
                redis,
                busy[name],
                connections=32,
                sessions=1000,
                seconds=lab.pick(20, 7) / 10,
                name="b",
            )
            if turn % 2 == 0:
                take(lab, [server], redis, single[name], connections=1, sessions=100, seconds=1, name="c")
    echo, script, service = (busy[name] for name in servers)
    one = "Starlette, redis-py, one EVALSHA"
    two = "Starlette, orjson, echo"
    rate, micro = "hooks/s", "µs"
    return [
        Figure("echo floor, c=32", median(echo.rate), rate),
        Figure("EVALSHA floor, c=32", median(script.rate), rate),
        Figure("service, c=32", median(service.rate), rate, one, ratio(service.rate, script.rate), ">= 1.0"),
        Figure("service, c=32", median(service.rate), rate, two, ratio(service.rate, echo.rate), ">= 0.4"),
        Figure("service, c=32, p50", median(service.p50) * 1e3, "ms", one, ratio(service.p50, script.p50)),
        Figure("service, c=32, p99", median(service.p99) * 1e3, "ms", one, ratio(service.p99, script.p99)),
        Figure(
            "service, c=1, p50",
            median(single["service"].p50) * 1e3,
            "ms",
            one,
            ratio(single["service"].p50, single["script"].p50),
        ),
        Figure(
            "service, c=1, p99",
            median(single["service"].p99) * 1e3,
            "ms",
            one,
            ratio(single["service"].p99, single["script"].p99),
        ),
        Figure("process, per event", median(service.cpu) * 1e6, micro, one, ratio(service.cpu, script.cpu)),
        Figure("process, per event", median(service.cpu) * 1e6, micro, two, ratio(service.cpu, echo.cpu)),
        Figure(
            "Redis, per event", median(service.redis) * 1e6, micro, one, ratio(service.redis, script.redis)
        ),
        Figure("one Redis could take", 1 / median(service.redis), "events/s"),
    ]
