"""Redis stopped, frozen, emptied, without its scripts, or with its replies lost: the agent never notices."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

import pytest

from tests.app.replica import Event, Replica, running, until
from tests.faults.lossy import lossy
from tests.fixtures_redis import Alone
from tests.servers import OwnServer

pytestmark = pytest.mark.slow

AT_ONCE = 0.3 + 0.5
"""The bound of 300 ms, and what a busy machine may add to any request."""


def restart_empty(server: OwnServer) -> None:
    """Come back without any data."""
    server.kill()
    server.forget()
    server.start()


async def post(replica: Replica, name: str) -> tuple[str, float]:
    """Post a hook that is told by its name; what was said about its storing, and the seconds it took."""
    started = time.perf_counter()
    response = await replica.hook("Notification", "s1", notification_type=name)
    taken = time.perf_counter() - started
    assert response.status_code == 200
    assert response.json() == {}
    return response.headers["aep-stored"], taken


async def recovered(replica: Replica) -> None:
    async with asyncio.timeout(20):
        while (await post(replica, "probe"))[0] != "yes":
            await asyncio.sleep(0.05)


def check(told: dict[str, str], events: list[Event]) -> Counter[str]:
    """Every stored hook once, none twice, nothing that was said not to be stored; positions rise."""
    seen = Counter(event["subject"] for event in events)
    assert set(seen.values()) <= {1}
    for name, stored in told.items():
        if stored == "yes":
            assert seen[name] == 1, name
        if stored == "no":
            assert seen[name] == 0, name
    positions = [event["seq"] for event in events]
    assert positions == sorted(set(positions))
    return seen


async def all_events(replica: Replica) -> list[Event]:
    events = (await replica.replay()).events
    return [event for event in events if event.get("subject") != "probe"]


async def test_stopped(own_server: OwnServer) -> None:
    async with running(own_server, hook_timeout_ms=250) as replica:
        told = {"before": (await post(replica, "before"))[0]}
        own_server.kill()
        worst = 0.0
        for number in range(30):
            stored, taken = await post(replica, f"while{number}")
            told[f"while{number}"] = stored
            worst = max(worst, taken)
        assert worst < AT_ONCE
        assert "yes" not in [told[f"while{number}"] for number in range(1, 30)]
        health = (await replica.client.get("/healthz")).json()
        assert not health["ok"]
        assert health["problem"]
        assert (await replica.client.get("/readyz")).status_code == 503
        own_server.start()
        await recovered(replica)
        told["after"] = (await post(replica, "after"))[0]
        assert told["before"] == told["after"] == "yes"
        check(told, await all_events(replica))
        await until(lambda: replica.service.problem() is None)


async def test_frozen_for_eight_seconds(own_server: OwnServer) -> None:
    async with running(own_server, hook_timeout_ms=250) as replica:
        told = {"before": (await post(replica, "before"))[0]}
        own_server.freeze()
        try:
            worst = 0.0
            end = time.monotonic() + 8
            number = 0
            while time.monotonic() < end:
                names = [f"while{number}-{part}" for part in range(4)]
                for name, (stored, taken) in zip(
                    names, await asyncio.gather(*(post(replica, name) for name in names)), strict=True
                ):
                    told[name] = stored
                    worst = max(worst, taken)
                number += 1
                await asyncio.sleep(0.02)
        finally:
            own_server.thaw()
        assert worst < AT_ONCE
        assert number > 50, "most hooks fail fast instead of waiting"
        await recovered(replica)
        told["after"] = (await post(replica, "after"))[0]
        assert told["after"] == "yes"
        seen = check(told, await all_events(replica))
        unknown = [name for name, stored in told.items() if stored == "unknown"]
        print(f"frozen: worst {worst * 1000:.0f} ms, {len(told)} hooks, {len(unknown)} unknown,")
        print(f"of which applied: {sum(seen[name] for name in unknown)}")


async def test_restarted_empty(own_server: OwnServer) -> None:
    async with running(own_server, hook_timeout_ms=250) as replica:
        await post(replica, "before")
        last = (await all_events(replica))[-1]["seq"]
        async with replica.stream() as stream:
            restart_empty(own_server)
            await recovered(replica)
            told = {f"after{n}": (await post(replica, f"after{n}"))[0] for n in range(5)}
            assert set(told.values()) == {"yes"}
            events = await all_events(replica)
            check(told, events)
            assert events[0]["seq"] > last
            # A consumer either gets them, or is sent away to resume: never left in silence.
            with contextlib.suppress(StopAsyncIteration):
                await stream.until_events(1, seconds=15)


async def test_scripts_flushed(own_server: OwnServer) -> None:
    async with running(own_server, hook_timeout_ms=250) as replica:
        told = {}
        for number in range(6):
            told[f"n{number}"] = (await post(replica, f"n{number}"))[0]
            assert own_server.run("SCRIPT", "FLUSH")
        assert set(told.values()) == {"yes"}
        check(told, await all_events(replica))


async def test_everything_flushed_between_hooks(own_server: OwnServer) -> None:
    async with running(own_server, hook_timeout_ms=250) as replica:
        tops = []
        for number in range(6):
            assert (await post(replica, f"n{number}"))[0] == "yes"
            tops.append((await all_events(replica))[-1]["seq"])
            assert own_server.run("FLUSHALL")
        assert tops == sorted(set(tops))


async def test_replies_lost_on_the_way_back(alone: Alone) -> None:
    with lossy(alone()) as (url, proxy):
        async with running(url, hook_timeout_ms=2_000) as replica:
            told = {}
            for number in range(40):
                proxy.losses = number % 3
                told[f"n{number}"] = (await post(replica, f"n{number}"))[0]
            proxy.losses = 0
            assert proxy.lost >= 20
            assert set(told.values()) == {"yes"}
            check(told, await all_events(replica))


async def test_replies_lost_beyond_the_deadline(alone: Alone) -> None:
    with lossy(alone()) as (url, proxy):
        async with running(url, hook_timeout_ms=250) as replica:
            await post(replica, "before")
            proxy.losses = 1_000
            stored, taken = await post(replica, "lost")
            assert stored == "unknown"
            assert taken < AT_ONCE
            proxy.losses = 0
            await recovered(replica)
            seen = check({"lost": stored}, await all_events(replica))
            assert seen["lost"] == 1


async def test_a_read_only_server_is_not_a_place_to_store(alone: Alone) -> None:
    server = alone()
    async with running(server, hook_timeout_ms=250) as replica:
        assert (await post(replica, "before"))[0] == "yes"
        assert server.run("REPLICAOF", "127.0.0.1", "1")
        assert (await post(replica, "while"))[0] == "no"
        assert server.run("REPLICAOF", "NO", "ONE")
        await recovered(replica)
        check({"before": "yes", "while": "no"}, await all_events(replica))
