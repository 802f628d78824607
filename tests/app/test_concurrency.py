"""Four processes at once: on one session, and on five hundred."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import httpx2
import pytest

from tests.app.processes import processes
from tests.app.replica import Event, Messages, fresh_prefix
from tests.servers import AnyServer

pytestmark = pytest.mark.slow

EACH = 500
WORKERS = 8


async def drive(urls: list[str], sessions: list[str]) -> Counter[str]:
    """Every process gets `EACH` hooks, spread over `sessions`; what they said about storing them."""
    told: Counter[str] = Counter()

    async def work(client: httpx2.AsyncClient, numbers: range, url: str) -> None:
        for number in numbers:
            payload = {
                "hook_event_name": "Notification",
                "session_id": sessions[number % len(sessions)],
                "notification_type": f"{url}/{number}",
            }
            response = await client.post(f"{url}/hook", json=payload)
            assert response.status_code == 200
            told[response.headers["aep-stored"]] += 1

    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as client:
        await asyncio.gather(
            *(work(client, range(first, EACH, WORKERS), url) for url in urls for first in range(WORKERS))
        )
    return told


async def everything(url: str) -> list[Event]:
    async with httpx2.AsyncClient(timeout=60) as client:
        response = await client.get(f"{url}/stream", params={"from": "all", "live": "0"})
    messages = Messages()
    for line in response.text.split("\n"):
        messages.feed(line)
    return messages.events


@pytest.mark.parametrize("count", [1, 500])
async def test_nothing_is_lost_or_doubled(redis_server: AnyServer, count: int) -> None:
    sessions = [f"s{number}" for number in range(count)]
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }
    with processes(4, environment) as replicas:
        urls = [replica.url for replica in replicas]
        started = time.perf_counter()
        told = await drive(urls, sessions)
        seconds = time.perf_counter() - started
        answers = await asyncio.gather(*(everything(url) for url in urls))
    assert told == {"yes": 4 * EACH}
    print(f"{4 * EACH} events on {count} sessions by 4 processes: {4 * EACH / seconds:.0f} a second")
    for events in answers:
        subjects = Counter(event["subject"] for event in events)
        assert len(subjects) == 4 * EACH
        assert set(subjects.values()) == {1}
        by_session: dict[str, list[int]] = {}
        for event in events:
            by_session.setdefault(event["session"], []).append(event["seq"])
        assert len(by_session) == count
        for positions in by_session.values():
            assert positions == sorted(set(positions))
    assert json.dumps(answers[0]) == json.dumps(answers[3])
