"""The other shapes of Redis: TLS, a restricted user, Sentinel with a failover, a cluster that moves slots."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from state.connection import Limits, connect
from state.errors import Refused, StateError, Unreachable, UnsafeServer
from state.feed import FeedEntry, FeedReader
from state.inspection import demand_safe, inspect
from state.keys import Keys, SessionKey, slot
from state.replay import Replay
from state.sessions import Sessions
from tests.leaks import leaks
from tests.servers import (
    RIGHTS,
    AnyServer,
    OwnServer,
    Restricted,
    Server,
    free_port,
    program,
    restricted,
)
from tests.shapes import ClusterServers
from tests.state.test_lifetimes import use_everything
from tests.state.toy import Engine

KEY = SessionKey("host", "session-1")
NOW = 1_000_000
PATIENT = Limits(write=20, read=20, connect=20)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["alone", "cluster"])
def as_user(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    """A server, or a cluster, on which the service is a user without other rights."""
    if request.param == "alone":
        server: Server | ClusterServers = Restricted(aof=True)
    else:
        server = ClusterServers(aof=True, options=restricted("+cluster|slots"))
        server.url = server.url.replace("://", "://aep:secret@")
    yield server
    assert leaks(server.held()) == []
    server.stop()


async def test_a_user_restricted_to_the_prefix_can_do_everything(as_user: AnyServer) -> None:
    client, keys = connect(as_user.url, PATIENT), Keys("aep", as_user.shards)
    heard: list[FeedEntry] = []
    reader = FeedReader(client, keys, lambda _, entries: heard.extend(entries), block_ms=100)
    reader.start()
    async with asyncio.timeout(20):
        await reader.ready()
    await use_everything(client, keys)
    assert (await Replay(client, keys).read(SessionKey("host", "later"))).entries
    async with asyncio.timeout(20):
        while not heard:
            await asyncio.sleep(0.01)
    await reader.stop()
    with pytest.raises(Refused):
        await client.call("other", "SET", "other", "1")
    assert {(facts.eviction, facts.warnings) for facts in await inspect(client)} == {(None, ())}
    await client.close()
    wrong = connect(as_user.url.replace("secret", "wrong"), PATIENT)
    with pytest.raises(Unreachable, match=r"WRONGPASS|invalid username"):
        await wrong.call("", "PING")
    await wrong.close()


def test_the_rights_of_the_tests_are_those_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
    assert RIGHTS in guide
    assert "`+cluster|slots`" in guide


async def test_a_server_that_evicts_is_refused(own_server: OwnServer) -> None:
    trusted = connect(own_server.admin_url, PATIENT)
    assert await demand_safe(trusted) == []
    own_server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    (warning,) = await demand_safe(trusted)
    assert "allkeys-lru" in warning
    own_server.run("CONFIG", "SET", "maxmemory", "100mb")
    with pytest.raises(UnsafeServer, match="allkeys-lru"):
        await demand_safe(trusted)
    own_server.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
    own_server.run("CONFIG", "SET", "appendonly", "no")
    (warning,) = await demand_safe(trusted)
    assert "restart" in warning
    await trusted.close()


def certificates(directory: Path) -> None:
    """A private authority and a certificate for 127.0.0.1."""
    names = "subjectAltName=IP:127.0.0.1"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test", "-addext", names]
    subprocess.run(make, cwd=directory, check=True, capture_output=True)


async def test_tls(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None or shutil.which("openssl") is None:
        pytest.skip("needs a redis-server with TLS and openssl")
    await asyncio.to_thread(certificates, tmp_path)
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(tmp_path / "cert.pem")]
    options += ["--tls-key-file", str(tmp_path / "key.pem"), "--tls-ca-cert-file", str(tmp_path / "cert.pem")]
    options += ["--tls-auth-clients", "no"]
    server = Server("redis", options=options)
    try:
        client = connect(f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path / 'cert.pem'}", PATIENT)
        await Engine(Sessions(client, Keys())).apply(KEY, [b"first"], NOW)
        assert (await Replay(client, Keys()).read(KEY)).entries == ((NOW, b"first"),)
        await client.close()
        distrustful = connect(f"rediss://127.0.0.1:{port}", PATIENT)
        with pytest.raises(Unreachable, match=r"(?i)certificate"):
            await distrustful.call("", "PING")
        await distrustful.close()
    finally:
        server.stop()


def ask_sentinel(port: int) -> list[object]:
    """The replicas that a Sentinel knows and finds well."""
    with Redis(port=port, protocol=2, decode_responses=True) as redis:
        found = redis.execute_command("SENTINEL", "REPLICAS", "mymaster")
    return [replica for replica in found if "slave" in replica]


@pytest.mark.slow
async def test_sentinel_names_the_next_primary(tmp_path: Path) -> None:
    primary = Server(port=free_port())
    replica = Server(port=free_port())
    replica.run("REPLICAOF", "127.0.0.1", primary.port)
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
    )
    sentinel = await asyncio.create_subprocess_exec(
        program(), str(config), "--sentinel", stdout=asyncio.subprocess.DEVNULL
    )
    # An address that refuses comes first: it must not keep us from the one that answers.
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/mymaster"
    client = connect(url, Limits(write=0.5, read=1, connect=0.5))
    engine = Engine(Sessions(client, Keys()))
    heard: list[FeedEntry] = []
    reader = FeedReader(client, Keys(), lambda _, entries: heard.extend(entries), block_ms=200)
    reader.start()

    async def write(body: bytes) -> None:
        async with asyncio.timeout(40):
            while True:
                try:
                    await engine.apply(KEY, [body], now_ms())
                    return
                except StateError:
                    engine.guesses.clear()
                    await asyncio.sleep(0.1)

    try:
        await write(b"first")
        async with asyncio.timeout(20):
            await reader.ready()
        await write(b"before")
        async with asyncio.timeout(20):
            while replica.run("XLEN", Keys().session(KEY).events) != 2:
                await asyncio.sleep(0.1)
            # It must know the replica before it can promote it.
            while not ask_sentinel(port):
                await asyncio.sleep(0.2)
        primary.kill()
        await write(b"after")
        page = await Replay(client, Keys()).read(KEY)
        assert [body for _, body in page.entries] == [b"first", b"before", b"after"]
        async with asyncio.timeout(20):
            while not heard or heard[-1].body != b"after":
                await asyncio.sleep(0.05)
        assert [entry.body for entry in heard][-2:] == [b"before", b"after"]
        assert replica.run("XLEN", Keys().session(KEY).events) == 3
    finally:
        await reader.stop()
        await client.close()
        sentinel.kill()
        await sentinel.wait()
        primary.stop()
        replica.stop()


@pytest.mark.slow
async def test_a_cluster_may_move_a_shard_while_it_is_written_to() -> None:
    cluster = ClusterServers()
    client = connect(cluster.url, Limits(write=5, read=5))
    keys = Keys("aep", 16)
    engine = Engine(Sessions(client, keys))
    names = keys.session(KEY)
    heard: list[FeedEntry] = []
    reader = FeedReader(client, keys, lambda _, entries: heard.extend(entries), block_ms=200)
    reader.start()
    await reader.ready()
    number = slot(names.record)
    source = cluster.nodes[number * 3 // 16384]
    target = cluster.nodes[(number * 3 // 16384 + 1) % 3]
    written = 0

    async def write(count: int) -> None:
        nonlocal written
        for _ in range(count):
            async with asyncio.timeout(20):
                while True:
                    try:
                        await engine.apply(KEY, [b"%d" % written], now_ms())
                        break
                    except StateError:
                        # A script whose keys are half here and half there is refused until they are together.
                        await asyncio.sleep(0.02)
            written += 1

    try:
        await write(10)
        ids = [node.run("CLUSTER", "MYID") for node in (source, target)]
        target.run("CLUSTER", "SETSLOT", number, "IMPORTING", ids[0])
        source.run("CLUSTER", "SETSLOT", number, "MIGRATING", ids[1])
        writing = asyncio.create_task(write(20))
        for name in source.run("CLUSTER", "GETKEYSINSLOT", number, 1000):
            await asyncio.sleep(0.01)
            source.run("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
        for name in source.run("CLUSTER", "GETKEYSINSLOT", number, 1000):
            source.run("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
        for node in (target, source, *cluster.nodes):
            node.run("CLUSTER", "SETSLOT", number, "NODE", ids[1])
        await writing
        await write(10)
        page = await Replay(client, keys).read(KEY)
        bodies = [body for _, body in page.entries]
        assert bodies == [b"%d" % body for body in range(written)]
        async with asyncio.timeout(20):
            while len(heard) < written:
                await asyncio.sleep(0.05)
        assert [entry.body for entry in heard] == bodies
    finally:
        await reader.stop()
        await client.close()
        cluster.stop()
