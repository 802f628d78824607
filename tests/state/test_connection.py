"""Connections: URL forms, failures told apart, nothing sent twice, one connection for many calls."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from state.connection import Client, Limits, connect
from state.errors import NotReplicated, Refused, StateError, Unanswered, Unreachable
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Sessions
from tests.fixtures_redis import PATIENT, Alone
from tests.servers import OwnServer, free_port
from tests.state.toy import Engine, Fold

KEY = SessionKey("host", "session-1")
NOW = 1_000_000
N = "aep:hand:n"


@pytest.fixture
async def impatient(own_server: OwnServer) -> AsyncIterator[Client]:
    client = connect(own_server.url, Limits(write=0.25, read=0.4, connect=0.25))
    yield client
    await client.close()


async def value(server: OwnServer) -> bytes | None:
    """What stands at N."""
    client = connect(server.admin_url, PATIENT)
    found: bytes | None = await client.call(N, "GET", N)
    await client.close()
    return found


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://user:p%40ss@localhost:6380/3",
        "rediss://localhost:6380?ssl_cert_reqs=none",
        "valkey://localhost",
        "valkeys://localhost",
        "unix:///run/redis.sock?db=2",
        "redis+sentinel://:secret@one,two:26380/mymaster/1?sentinel_password=x",
        "rediss+sentinel://one/mymaster",
        "redis+cluster://one:7000,[::1]:7001",
        "rediss+cluster://user:pass@one:7000",
        "valkey+cluster://one",
    ],
)
async def test_every_form_of_url_is_understood_without_a_server(url: str) -> None:
    client = connect(url)
    assert not client.connected
    await client.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis+sentinel://one",
        "redis+cluster://one:x",
        "redis+x://one",
    ],
)
def test_any_other_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis URL|Sentinel|host"):
        connect(url)


async def test_a_server_that_is_away_is_unreachable_at_once() -> None:
    for url in (f"redis://127.0.0.1:{free_port()}", "unix:///nowhere/v.sock"):
        client = connect(url, Limits(write=10, read=10, connect=10))
        with pytest.raises(Unreachable):
            await client.call("", "PING")
        assert not client.connected
        await client.close()


async def test_a_frozen_server_leaves_a_call_unanswered(own_server: OwnServer, impatient: Client) -> None:
    await impatient.call("", "PING")
    own_server.freeze()
    with pytest.raises(Unanswered):
        await impatient.call(N, "INCR", N)
    assert not impatient.connected
    # A new connection to a frozen server gets as far as the kernel answers for it.
    with pytest.raises(StateError):
        await impatient.call(N, "INCR", N)
    own_server.thaw()
    async with asyncio.timeout(20):
        while True:
            try:
                await impatient.call("", "PING")
                break
            except StateError:
                await asyncio.sleep(0.05)
    # The first was on its way and counts once; the second was never written, or counts once, too.
    assert await value(own_server) in (b"1", b"2")


async def test_one_slow_call_takes_the_calls_behind_it_along_and_no_more(
    own_server: OwnServer, impatient: Client
) -> None:
    await impatient.call("", "PING")
    own_server.freeze()
    calls = [asyncio.create_task(impatient.call(N, "INCR", N)) for _ in range(50)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    own_server.thaw()
    assert {type(result) for result in results} == {Unanswered}
    async with asyncio.timeout(20):
        while await value(own_server) != b"50":
            await asyncio.sleep(0.02)


async def test_a_server_killed_in_the_middle_is_found_again(own_server: OwnServer, impatient: Client) -> None:
    await impatient.call("", "PING")
    own_server.kill()
    with pytest.raises(StateError):
        await impatient.call("", "PING")
    with pytest.raises(Unreachable):
        await impatient.call("", "PING")
    own_server.start()
    async with asyncio.timeout(20):
        while True:
            try:
                await impatient.call("", "PING")
                break
            except StateError:
                await asyncio.sleep(0.05)
    assert impatient.connected


async def test_a_thousand_calls_at_once_share_one_connection(own_server: OwnServer) -> None:
    client = connect(own_server.url, Limits(write=20, read=20))
    await client.call("", "ECHO", "first")
    before = str(own_server.run("CLIENT", "LIST")).count("aep-kimi")
    # In a cluster, one more asked for the map of its slots.
    assert before == (2 if own_server.url.startswith("redis+cluster") else 1)
    replies = await asyncio.gather(*(client.call("", "ECHO", f"{number}") for number in range(1000)))
    assert replies == [b"%d" % number for number in range(1000)]
    assert str(own_server.run("CLIENT", "LIST")).count("aep-kimi") == before
    await client.close()


async def test_a_caller_who_gives_up_shifts_nobodys_reply(own_server: OwnServer) -> None:
    client = connect(own_server.url, Limits(write=20, read=20))

    async def ask(number: int) -> None:
        assert await client.call("", "ECHO", f"{number}") == b"%d" % number

    for start in range(0, 600, 20):
        tasks = [asyncio.create_task(ask(number)) for number in range(start, start + 20)]
        await asyncio.sleep(0)
        for task in tasks[:: 1 + start % 3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    await client.close()


async def test_an_error_reply_is_for_its_call_alone(client: Client, keys: Keys) -> None:
    name = keys.shard(0, "index")
    calls = [client.call(name, "GET", name), client.call(name, "NONSENSE"), client.call(name, "GET", name)]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, third) == (None, None)
    assert isinstance(second, Refused)
    assert "NONSENSE" in str(second)


async def test_an_argument_of_a_wrong_kind_harms_nobody_else(client: Client, keys: Keys) -> None:
    name = keys.shard(0, "index")
    with pytest.raises(TypeError):
        await client.call(name, "SET", name, object())  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        await client.call(name, "SET", name, "\ud800")
    assert await client.call(name, "GET", name) is None


async def test_a_closed_client_says_so(redis_url: str) -> None:
    client = connect(redis_url)
    await client.close()
    with pytest.raises(Unreachable):
        await client.call("x", "GET", "x")


async def test_a_commit_over_a_reply_that_got_lost_stands_once(
    own_server: OwnServer, impatient: Client
) -> None:
    sessions = Sessions(impatient, Keys("aep", 1))
    await Engine(sessions).apply(KEY, [b"first"], NOW)
    record = await sessions.load(KEY)
    fold = Fold.decode(record.state).add(NOW + 1, b"second")
    call = {
        "expected": record.version,
        "commit_id": sessions.commit_id(),
        "state": fold.encode(),
        "events": [(NOW + 1, b"second")],
        "now_ms": NOW,
    }
    own_server.freeze()
    with pytest.raises(Unanswered):
        await sessions.commit(KEY, **call)
    own_server.thaw()
    async with asyncio.timeout(20):
        while True:
            try:
                await sessions.commit(KEY, **call)
                break
            except StateError:
                await asyncio.sleep(0.05)
    page = await Replay(impatient, sessions.keys).read(KEY)
    assert [body for _, body in page.entries] == [b"first", b"second"]


async def test_a_write_that_no_replica_confirms_says_so(own_server: OwnServer, alone: Alone) -> None:
    client = connect(own_server.url, Limits(write=20, wait_replicas=1, wait=0.02))
    sessions = Sessions(client, Keys("aep", 1))
    with pytest.raises(NotReplicated, match="0 of 1"):
        await Engine(sessions).apply(KEY, [b"first"], NOW)
    # It stands at the primary all the same.
    assert (await sessions.load(KEY)).top == NOW
    await client.close()
    replica = alone(port=free_port())
    primary = alone(port=free_port(), options=["--repl-diskless-sync-delay", "0"])
    replica.run("REPLICAOF", "127.0.0.1", primary.port)
    patient = connect(primary.url, Limits(write=20, wait_replicas=1, wait=10))
    await Engine(Sessions(patient, Keys("aep", 1))).apply(KEY, [b"first"], NOW)
    await patient.close()
    assert len(replica.run("KEYS", "aep:*")) >= 4


async def test_a_primary_that_became_a_replica_is_left(alone: Alone) -> None:
    server = alone()
    client = connect(server.url, Limits(write=20))
    await client.call(N, "SET", N, "1")
    server.run("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(Refused, match="read only replica"):
        await client.call(N, "SET", N, "2")
    server.run("REPLICAOF", "NO", "ONE")
    await client.call(N, "SET", N, "3")
    await client.close()


async def test_connecting_to_nowhere_ends_in_time() -> None:
    # The kernel accepts, and nobody ever says a word.
    mute = socket.create_server(("127.0.0.1", 0))
    port = mute.getsockname()[1]
    client = connect(f"redis://127.0.0.1:{port}", Limits(write=0.2, connect=0.2))
    started = time.monotonic()
    with pytest.raises(StateError):
        await client.call("", "PING")
    assert time.monotonic() - started < 5
    await client.close()
    mute.close()
