"""Which Redis is trusted with state: one that evicts is refused, one that forgets is warned about.

What a server is set to can be read by an administrator alone, so the service is one here where that matters.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from handlers.app import create_app
from handlers.errors import SettingsError
from handlers.settings import Settings
from state.connection import Limits, connect
from state.errors import NotReplicated
from state.keys import Keys, SessionKey
from state.sessions import Conflict, Sessions
from tests.app.processes import ROOT
from tests.app.replica import fresh_prefix, running, until
from tests.fixtures_redis import Alone
from tests.servers import OwnServer, free_port


def evict(server: OwnServer) -> None:
    server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.run("CONFIG", "SET", "maxmemory", "100mb")


async def test_a_server_that_evicts_is_no_place_for_state(own_server: OwnServer) -> None:
    evict(own_server)
    service = create_app(Settings(redis_url=own_server.admin_url, redis_prefix=fresh_prefix())).state.service
    with pytest.raises(SettingsError, match=r"AEP_REDIS_URL: .*allkeys-lru.*noeviction"):
        await service.start()


def test_the_command_says_so_in_one_line(own_server: OwnServer) -> None:
    evict(own_server)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AEP_")}
    found = subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", "serve", "--port", "0"],
        cwd=ROOT,
        env=kept | {"AEP_REDIS_URL": own_server.admin_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 2
    assert "AEP_REDIS_URL: maxmemory-policy is allkeys-lru" in found.stdout
    assert "Traceback" not in found.stdout + found.stderr


async def test_a_server_that_forgets_is_warned_about(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.run("CONFIG", "SET", "appendonly", "no")
    with caplog.at_level(logging.WARNING, "handlers.service"):
        async with running(own_server.admin_url, shards=own_server.shards) as replica:
            assert (await replica.hook("Stop")).headers["aep-stored"] == "yes"
    assert "a restart loses every session" in caplog.text


async def test_one_that_turns_out_to_evict_later_shows_in_health(own_server: OwnServer) -> None:
    evict(own_server)
    own_server.freeze()
    try:
        service = create_app(
            Settings(redis_url=own_server.admin_url, redis_prefix=fresh_prefix(), hook_timeout_ms=10_000)
        ).state.service
        await service.start()
    finally:
        own_server.thaw()
    try:
        await until(lambda: service.problem() is not None and "allkeys-lru" in service.problem())
        assert not await service.ping()
    finally:
        await service.stop()


async def test_without_its_replicas_a_commit_is_unknown(own_server: OwnServer) -> None:
    prefix = fresh_prefix()
    async with (
        running(own_server, redis_prefix=prefix, redis_wait=1) as one,
        running(own_server, redis_prefix=prefix, redis_wait=1) as two,
    ):
        for replica in (one, two, one, two):
            response = await replica.hook("Notification", body="x")
            assert (response.headers["aep-stored"], response.json()) == ("unknown", {})
        # It stands at the primary all the same, and that is no trouble with Redis.
        assert len((await one.replay()).events) == 4
        assert one.service.counters["moments.unstored.unreplicated"] == 2
        assert one.service.problem() is None


async def test_a_conflict_needs_no_confirmation(own_server: OwnServer) -> None:
    client = connect(own_server.url, Limits(write=20, wait_replicas=1, wait=0.02))
    sessions = Sessions(client, Keys("aep", 1))
    key = SessionKey("host", "s")
    call: dict[str, Any] = {"state": b"{}", "events": [(1, b"e")], "now_ms": 1, "due_ms": None}
    with pytest.raises(NotReplicated):
        await sessions.commit(key, expected="", commit_id="a" * 16, **call)
    found = await sessions.commit(key, expected="", commit_id="b" * 16, **call)
    assert isinstance(found, Conflict)
    await client.close()


async def test_with_its_replica_it_is_stored(alone: Alone) -> None:
    primary = alone(port=free_port(), options=["--repl-diskless-sync-delay", "0"])
    follower = alone(port=free_port())
    follower.run("REPLICAOF", "127.0.0.1", primary.port)
    async with running(primary, redis_wait=1) as replica:
        async with asyncio.timeout(20):
            while (await replica.hook("Notification", body="x")).headers["aep-stored"] != "yes":
                await asyncio.sleep(0.1)
    assert len(follower.run("KEYS", "*:evs")) == 1
