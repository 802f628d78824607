"""`GET /metrics` in the text format, and what it counts."""

from __future__ import annotations

import json
import re

from handlers.counters import Histogram
from tests.app.duplex import duplex, event
from tests.app.replica import Replica, running, until
from tests.servers import AnyServer

LINE = re.compile(r'([a-z_0-9]+)(\{[a-z_]+="[^"\\\n]*"\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)')


async def read(replica: Replica) -> dict[str, float]:
    """Every series and its value; the text is checked on the way."""
    response = await replica.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text.endswith("\n")
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match is not None, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert (match[1] if match[1] in kinds else family) in kinds, line
            key = match[1] + (match[2] or "")
            assert key not in found
            found[key] = float(match[3])
    return found


async def test_what_was_done_is_counted(replica: Replica) -> None:
    for name in ("UserPromptSubmit", "Stop"):
        await replica.hook(name, prompt="hi")
    # Of one session: what the hooks stored may still be on its way when these begin to listen.
    chosen = {"session": "x"}
    async with replica.stream(filter=json.dumps(chosen)) as stream, duplex(replica.url) as consumer:
        await consumer.hello()
        await consumer.subscribe(filter=chosen)
        await replica.client.post("/events", json=event("x", 1), headers={"aep-version": "0.1"})
        await stream.until_events(1)
        await consumer.events(1)
        await until(lambda: replica.service.counters["events.out.stream"] == 1)
        assert (await replica.client.post("/hook", content=b"{}")).status_code == 415
        found = await read(replica)
    assert found['aep_hooks_total{stored="yes"}'] == 2
    assert found["aep_events_stored_total"] == 2
    assert found["aep_posted_events_total"] == 1
    assert found['aep_events_out_total{binding="stream"}'] == 1
    assert found['aep_refused_total{reason="unsupported-media-type"}'] == 1
    assert found["aep_consumers"] == 2
    assert found["aep_up"] == 1
    assert found["aep_held"] == found["aep_relay_bound"] == found["aep_feed_missed_total"] == 0
    assert found["aep_hook_seconds_count"] == 2
    assert found['aep_hook_seconds_bucket{le="+Inf"}'] == 2
    assert found["aep_commit_seconds_count"] >= 2
    assert found["aep_feed_lag_seconds_count"] >= 1
    assert found["aep_commits_conflicts_total"] >= 0


async def test_what_was_lost_is_counted(redis_server: AnyServer) -> None:
    async with running("redis://127.0.0.1:1", hook_timeout_ms=250) as replica:
        assert (await replica.hook("Stop")).headers["aep-stored"] == "no"
        found = await read(replica)
    assert found['aep_hooks_total{stored="no"}'] == 1
    assert sum(value for key, value in found.items() if key.startswith("aep_dropped_total")) == 1
    assert found["aep_up"] == 0


async def test_only_those_who_may_watch(redis_server: AnyServer) -> None:
    async with running(redis_server, token="correct-horse") as replica:
        response = await replica.client.get("/metrics")
        assert (response.status_code, response.json()["error"]) == (401, "unauthorized")
        good = {"authorization": "Bearer correct-horse"}
        assert "aep_up 1" in (await replica.client.get("/metrics", headers=good)).text


async def test_health_tells_the_clocks(replica: Replica) -> None:
    await until(lambda: replica.service.offset_ms is not None)
    clocks = (await replica.client.get("/healthz")).json()["clocks"]
    assert len(clocks) == 1
    assert all(abs(offset) < 5_000 for offset in clocks.values())


def test_a_histogram() -> None:
    histogram = Histogram()
    for seconds in (-1, 0, 0.001, 0.0011, 5, 6):
        histogram.observe(seconds)
    assert (histogram.buckets[0], histogram.buckets[1]) == (3, 1)
    assert (histogram.buckets[-2], histogram.buckets[-1]) == (1, 1)
    assert histogram.count == 6
    assert round(histogram.total, 4) == 11.0021
