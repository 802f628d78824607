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
from tests.servers import AnyServer, Server, free_port
from tests.state.toy import Engine, Fold

KEY = SessionKey("host", "session-1")
NOW = 1_000_000


@pytest.fixture
async def impatient(own_server: Server) -> AsyncIterator[Client]:
    client = connect(own_server.url, Limits(write=0.25, read=0.4, connect=0.25))
    yield client
    await client.close()


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


async def test_a_frozen_server_leaves_a_call_unanswered(own_server: Server, impatient: Client) -> None:
    await impatient.call("", "PING")
    own_server.freeze()
    with pytest.raises(Unanswered):
        await impatient.call("", "INCR", "n")
    assert not impatient.connected
    # A new connection to a frozen server gets as far as the kernel answers for it.
    with pytest.raises(StateError):
        await impatient.call("", "INCR", "n")
    own_server.thaw()
    async with asyncio.timeout(20):
        while True:
            try:
                await impatient.call("", "PING")
                break
            except StateError:
                await asyncio.sleep(0.05)
    # The first was on its way and counts once; the second was never written, or counts once, too.
    assert own_server.run("GET", "n") in (b"1", b"2")


async def test_one_slow_call_takes_the_calls_behind_it_along_and_no_more(
    own_server: Server, impatient: Client
) -> None:
    await impatient.call("", "PING")
    own_server.freeze()
    calls = [asyncio.create_task(impatient.call("", "INCR", "n")) for _ in range(50)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    own_server.thaw()
    assert {type(result) for result in results} == {Unanswered}
    async with asyncio.timeout(20):
        while own_server.run("GET", "n") != b"50":
            await asyncio.sleep(0.02)


async def test_a_server_killed_in_the_middle_is_found_again(own_server: Server, impatient: Client) -> None:
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


async def test_a_thousand_calls_at_once_share_one_connection(own_server: Server) -> None:
    client = connect(own_server.url, Limits(write=20, read=20))
    replies = await asyncio.gather(*(client.call("", "ECHO", f"{number}") for number in range(1000)))
    assert replies == [b"%d" % number for number in range(1000)]
    clients = own_server.run("CLIENT", "LIST")
    assert str(clients).count("aep-kimi") == 1
    await client.close()


async def test_a_caller_who_gives_up_shifts_nobodys_reply(own_server: Server) -> None:
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


async def test_a_commit_over_a_reply_that_got_lost_stands_once(own_server: Server, impatient: Client) -> None:
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


async def test_a_write_that_no_replica_confirms_says_so(own_server: Server) -> None:
    client = connect(own_server.url, Limits(write=20, wait_replicas=1, wait=0.02))
    sessions = Sessions(client, Keys("aep", 1))
    with pytest.raises(NotReplicated, match="0 of 1"):
        await Engine(sessions).apply(KEY, [b"first"], NOW)
    # It stands at the primary all the same.
    assert (await sessions.load(KEY)).top == NOW
    replica = Server(port=free_port())
    primary = Server(port=free_port(), options=["--repl-diskless-sync-delay", "0"])
    try:
        replica.run("REPLICAOF", "127.0.0.1", primary.port)
        patient = connect(primary.url, Limits(write=20, wait_replicas=1, wait=10))
        await Engine(Sessions(patient, Keys("aep", 1))).apply(KEY, [b"first"], NOW)
        await patient.close()
        assert len(replica.run("KEYS", "aep:*")) >= 4
    finally:
        replica.stop()
        primary.stop()
    await client.close()


async def test_a_primary_that_became_a_replica_is_left(own_server: Server) -> None:
    client = connect(own_server.url, Limits(write=20))
    await client.call("", "SET", "a", "1")
    own_server.run("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(Refused, match="read only replica"):
        await client.call("", "SET", "a", "2")
    own_server.run("REPLICAOF", "NO", "ONE")
    await client.call("", "SET", "a", "3")
    await client.close()


async def test_connecting_to_nowhere_ends_in_time(redis_server: AnyServer) -> None:
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
