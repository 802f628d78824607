"""Replicas die under load, and Redis is restarted, failed over and moved: what was said to be stored, is.

`AEP_CHAOS_SECONDS` (default 20) is how long each story lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.chaos.fleet import SECONDS, Fleet, fleet, judge, run, settled
from tests.servers import Server, free_port, program
from tests.shapes import ClusterServers

pytestmark = pytest.mark.chaos


async def tell(
    title: str, replicas: Fleet, ledger: Any, peers: list[Any], capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Judge, and print the counts."""
    found = judge(ledger, peers, await settled(replicas.proxy.url))
    with capsys.disabled():
        print(f"\n  {title}: {found}, replicas ended {dict(replicas.deaths)}")
    assert found["yes"] > 10 * SECONDS
    return found


async def test_redis_is_killed_and_comes_back_with_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    redis = Server("redis", port=free_port(), aof=True)

    async def restart() -> None:
        for _ in range(2):
            await asyncio.sleep(SECONDS / 3)
            await asyncio.to_thread(redis.kill)
            await asyncio.sleep(1)
            await asyncio.to_thread(redis.start)

    try:
        async with fleet(redis.url) as replicas:
            ledger, peers = await run(replicas, restart)
            found = await tell("restarted with AOF", replicas, ledger, peers, capsys)
            assert found["lost though stored"] == 0
    finally:
        redis.stop()


@asynccontextmanager
async def sentinel(directory: Path) -> AsyncIterator[tuple[str, Server, Server]]:
    """A primary, its replica and a Sentinel that promotes it; the URL to give to clients."""
    primary = Server(port=free_port(), aof=True)
    replica = Server(port=free_port(), aof=True, options=["--replicaof", "127.0.0.1", str(primary.port)])
    port = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
        f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds mymaster 800\nsentinel failover-timeout mymaster 3000\n"
    )
    process = await asyncio.create_subprocess_exec(
        program("embedded"), str(config), "--sentinel", stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while replica.run("INFO", "replication").get("master_link_status") != "up":
                await asyncio.sleep(0.1)
            while _At(port).run("INFO", "sentinel").get("master0", {}).get("slaves") != 1:
                await asyncio.sleep(0.2)
        yield f"redis+sentinel://127.0.0.1:{port}/mymaster", primary, replica
    finally:
        process.kill()
        await process.wait()
        primary.stop()
        replica.stop()


class _At(Server):
    """Somebody else's server, for `run`."""

    def __init__(self, port: int) -> None:
        self.path, self.port = "", port


@pytest.mark.parametrize("wait", ["0", "1"])
async def test_sentinel_promotes_the_replica(
    tmp_path: Path, wait: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sentinel(tmp_path) as (url, primary, _):

        async def fail_over() -> None:
            await asyncio.sleep(SECONDS / 3)
            await asyncio.to_thread(primary.kill)
            await asyncio.sleep(3)
            # It comes back as the new primary's replica, as Sentinel tells it.
            await asyncio.to_thread(primary.start)

        async with fleet(url, AEP_REDIS_WAIT=wait) as replicas:
            ledger, peers = await run(replicas, fail_over)
            found = await tell(f"failed over, AEP_REDIS_WAIT={wait}", replicas, ledger, peers, capsys)
            # Without WAIT what the old primary had not passed on yet is lost: counted, never doubled.
            if wait == "1":
                assert found["lost though stored"] == 0


async def test_a_cluster_node_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ClusterServers()
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
    fresh = Server(port=free_port(10_000), options=options)
    old = cluster.nodes[0]

    async def until(field: str, value: str) -> None:
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(fresh.run, "INFO", "replication")).get(field) != value:
                await asyncio.sleep(0.1)

    async def replace() -> None:
        await asyncio.sleep(SECONDS / 4)
        name = (await asyncio.to_thread(old.run, "CLUSTER", "MYID")).decode()
        await asyncio.to_thread(fresh.run, "CLUSTER", "MEET", "127.0.0.1", old.port)
        async with asyncio.timeout(30):
            while True:
                # Refused until the newcomer has heard of that node.
                with contextlib.suppress(ResponseError):
                    await asyncio.to_thread(fresh.run, "CLUSTER", "REPLICATE", name)
                    break
                await asyncio.sleep(0.2)
        await until("master_link_status", "up")
        await asyncio.to_thread(fresh.run, "CLUSTER", "FAILOVER")
        await until("role", "master")
        await asyncio.to_thread(old.kill)

    try:
        async with fleet(cluster.url, AEP_SHARDS="16") as replicas:
            ledger, peers = await run(replicas, replace)
            found = await tell("a cluster node replaced", replicas, ledger, peers, capsys)
            assert found["lost though stored"] == 0
    finally:
        cluster.stop()
        fresh.stop()
