"""The live feed: nothing missed, nothing twice, every gap counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from state.connection import Client, Limits, connect
from state.errors import StateError
from state.feed import Cursor, FeedEntry, FeedReader, Gap
from state.foreign import Foreign
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Bounds, Sessions
from tests.servers import OwnServer
from tests.state.toy import Engine

NOW = 1_000_000
KEY = SessionKey("host", "session-1")


class Ear:
    """A listener that keeps what it heard."""

    def __init__(self) -> None:
        self.entries: list[FeedEntry] = []
        self.gaps: list[Gap] = []

    def hear(self, shard: int, entries: object) -> None:
        self.entries += entries  # type: ignore[arg-type]

    def miss(self, gap: Gap) -> None:
        self.gaps.append(gap)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():
                await asyncio.sleep(0.005)


@pytest.fixture
async def ear() -> Ear:
    return Ear()


@pytest.fixture
async def reader(client: Client, keys: Keys, ear: Ear) -> AsyncIterator[FeedReader]:
    reader = FeedReader(client, keys, ear.hear, ear.miss, block_ms=300)
    reader.start()
    await reader.ready()
    yield reader
    await reader.stop()


async def test_what_is_committed_is_heard_in_order(
    client: Client, keys: Keys, ear: Ear, reader: FeedReader
) -> None:
    engine = Engine(Sessions(client, keys))
    for number in range(50):
        key = SessionKey("host", f"session-{number % 5}")
        await engine.apply(key, [b"%d" % number, b"%d again" % number], NOW)
    await ear.until(lambda: len(ear.entries) == 100)
    for number in range(5):
        key = SessionKey("host", f"session-{number}")
        heard = [(entry.seq, entry.body) for entry in ear.entries if entry.key == key]
        assert heard == list((await Replay(client, keys).read(key)).entries)
    assert {entry.kind for entry in ear.entries} == {"event"}
    assert ear.gaps == []
    assert reader.connected


async def test_notices_and_what_others_post_travel_too(
    client: Client, keys: Keys, ear: Ear, reader: FeedReader
) -> None:
    sessions, foreign = Sessions(client, keys), Foreign(client, keys)
    await sessions.commit(
        KEY, expected="", commit_id="x.1", state=b"", events=[(5, b"event")], now_ms=NOW, notice=b"decided"
    )
    await sessions.commit(
        KEY, expected="x.1", commit_id="x.2", state=b"", events=[], now_ms=NOW, notice=b"again"
    )
    await sessions.commit(KEY, expected="x.2", commit_id="x.3", state=b"", events=[], now_ms=NOW)
    await foreign.command(KEY, b"command")
    await foreign.command(KEY, b"command")
    await foreign.admit(KEY, "aep://other", "id-1", (0, 0), b"theirs", now_ms=NOW)
    await foreign.admit(KEY, "aep://other", "id-1", (0, 0), b"theirs", now_ms=NOW)
    await foreign.pass_on(KEY, b"of an agent")
    expected = [
        ("event", 5, b"event"),
        ("notice", 0, b"decided"),
        ("notice", 0, b"again"),
        ("command", 0, b"command"),
        ("command", 0, b"command"),
        ("foreign", 0, b"theirs"),
        ("foreign", 0, b"theirs"),
        ("foreign", 0, b"of an agent"),
    ]
    await ear.until(lambda: len(ear.entries) == len(expected))
    assert [(entry.kind, entry.seq, entry.body) for entry in ear.entries] == expected
    assert {entry.key for entry in ear.entries} == {KEY}


async def test_a_broken_connection_costs_nothing(client: Client, keys: Keys, ear: Ear) -> None:
    engine = Engine(Sessions(client, keys))
    reader = FeedReader(client, keys, ear.hear, ear.miss, block_ms=300)
    reader.start()
    await reader.ready()
    for number in range(60):
        await engine.apply(KEY, [b"%d" % number], NOW)
        if number % 10 == 5:
            for cursor in reader._cursors:
                if cursor._link is not None:
                    cursor._link.drop()
    await ear.until(lambda: len(ear.entries) >= 60)
    await asyncio.sleep(0.05)
    assert [entry.body for entry in ear.entries] == [b"%d" % number for number in range(60)]
    assert ear.gaps == []
    await reader.stop()


async def test_a_reader_that_is_too_slow_learns_how_much_it_missed(client: Client) -> None:
    keys = Keys("aep", 1)
    engine = Engine(Sessions(client, keys, Bounds(feed=10)))
    cursor = Cursor(client, keys, 0, block_ms=100)
    await engine.apply(KEY, [b"before"], NOW)
    await cursor.settle()
    for number in range(25):
        await engine.apply(KEY, [b"%d" % number], NOW)
    batch = await cursor.read()
    assert [entry.body for entry in batch.entries] == [b"%d" % number for number in range(15, 25)]
    assert batch.gap == Gap(0, 15)
    assert (await cursor.read()).entries == ()
    await cursor.close()


async def test_a_cursor_can_be_kept_and_taken_up(client: Client) -> None:
    keys = Keys("aep", 1)
    engine = Engine(Sessions(client, keys, Bounds(feed=10)))
    for number in range(5):
        await engine.apply(KEY, [b"%d" % number], NOW)
    first = Cursor(client, keys, 0, "", block_ms=100, limit=3)
    batch = await first.read()
    assert [entry.body for entry in batch.entries] == [b"0", b"1", b"2"]
    await first.close()
    second = Cursor(client, keys, 0, batch.entries[1].cursor, block_ms=100)
    batch = await second.read()
    assert [entry.body for entry in batch.entries] == [b"2", b"3", b"4"]
    assert batch.gap is None
    await second.close()
    for number in range(20):
        await engine.apply(KEY, [b"%d more" % number], NOW)
    third = Cursor(client, keys, 0, batch.entries[-1].cursor, block_ms=100)
    batch = await third.read()
    assert batch.gap == Gap(0, 10)
    assert len(batch.entries) == 10
    await third.close()


async def test_an_emptied_server_is_a_restart_and_nothing_after_it_is_missed(
    client: Client, admin: Client
) -> None:
    keys = Keys("aep", 1)
    engine = Engine(Sessions(client, keys))
    cursor = Cursor(client, keys, 0, block_ms=100)
    for number in range(5):
        await engine.apply(KEY, [b"%d" % number], NOW + number)
    await cursor.settle()
    await engine.apply(KEY, [b"5"], NOW + 10)
    assert [entry.body for entry in (await cursor.read()).entries] == [b"5"]
    await admin.everywhere("FLUSHALL")
    engine.guesses.clear()
    for number in range(3):
        await engine.apply(KEY, [b"%d after" % number], NOW + 2000 + number)
    batch = await cursor.read()
    assert [entry.body for entry in batch.entries] == [b"0 after", b"1 after", b"2 after"]
    assert batch.gap == Gap(0, 0, restarted=True)
    assert (await cursor.read()).entries == ()
    await cursor.close()


async def test_a_feed_that_ends_before_the_cursor_is_read_from_what_it_has(
    client: Client, admin: Client
) -> None:
    keys = Keys("aep", 1)
    name = keys.shard(0, "feed")
    await client.call(name, "XADD", name, "99999999999999-0", "n", 7, "m", KEY.name, "w", "", "9", "old")
    cursor = Cursor(client, keys, 0, block_ms=50)
    await cursor.settle()
    await admin.everywhere("FLUSHALL")
    await Engine(Sessions(client, keys)).apply(KEY, [b"new"], NOW)
    batch = await cursor.read()
    assert batch == type(batch)((), Gap(0, 0, restarted=True))
    assert [entry.body for entry in (await cursor.read()).entries] == [b"new"]
    await cursor.close()


async def test_a_fault_of_a_listener_does_not_end_the_feed(client: Client, keys: Keys) -> None:
    heard = []

    def listen(shard: int, entries: list[FeedEntry]) -> None:
        heard.extend(entries)
        raise RuntimeError("a fault")

    reader = FeedReader(client, keys, listen, block_ms=200)
    reader.start()
    await reader.ready()
    engine = Engine(Sessions(client, keys))
    for number in range(3):
        await engine.apply(KEY, [b"%d" % number], NOW)
        async with asyncio.timeout(20):
            while len(heard) <= number:
                await asyncio.sleep(0.005)
    await reader.stop()


async def test_a_frozen_and_a_restarted_server_cost_no_event(own_server: OwnServer) -> None:
    client = connect(own_server.url, Limits(write=0.3, read=0.5, connect=0.3))
    keys, ear = Keys("aep", own_server.shards), Ear()
    engine = Engine(Sessions(client, keys))
    reader = FeedReader(client, keys, ear.hear, ear.miss, block_ms=200)
    reader.start()
    await reader.ready()
    sent = 0

    async def write(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            async with asyncio.timeout(20):
                while True:
                    try:
                        await engine.apply(KEY, [b"%d" % sent], NOW)
                        break
                    except StateError:
                        # Given up here, and written again under a new id: it may stand twice.
                        engine.guesses.clear()
                        await asyncio.sleep(0.05)
            sent += 1

    await write(5)
    own_server.freeze()
    frozen = asyncio.create_task(write(1))
    await asyncio.sleep(0.8)
    own_server.thaw()
    await frozen
    await write(5)
    own_server.kill()
    own_server.start()
    await write(5)
    page = await Replay(client, keys).read(KEY)
    await ear.until(lambda: len(ear.entries) >= len(page.entries))
    assert [(entry.seq, entry.body) for entry in ear.entries] == list(page.entries)
    assert list(dict.fromkeys(int(entry.body) for entry in ear.entries)) == list(range(16))
    await reader.stop()
    await client.close()


async def test_what_nobody_waits_for_is_fetched_in_heaps(client: Client) -> None:
    keys = Keys("aep", 1)
    engine = Engine(Sessions(client, keys))
    heaps: list[int] = []
    idle = True
    reader = FeedReader(
        client, keys, lambda _, entries: heaps.append(len(entries)), idle=lambda: idle, block_ms=100
    )
    reader.start()
    await reader.ready()
    for number in range(200):
        await engine.apply(KEY, [b"%d" % number], NOW + number)
    async with asyncio.timeout(10):
        while sum(heaps) < 200:
            await asyncio.sleep(0.01)
    assert len(heaps) < 100
    assert reader.missed == 0
    # Whoever waits gets each at once again.
    idle = False
    heaps.clear()
    for number in range(20):
        await engine.apply(KEY, [b"%d" % number], NOW + 1000 + number)
        async with asyncio.timeout(10):
            while sum(heaps) <= number:
                await asyncio.sleep(0)
    assert heaps == [1] * 20
    await reader.stop()
