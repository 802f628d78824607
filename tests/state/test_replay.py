"""Replay and live together, cut anywhere, give every retained event once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state.connection import Client, Limits, connect
from state.feed import FeedEntry, FeedReader
from state.keys import Keys, SessionKey
from state.replay import Page, Replay
from state.sessions import DAY_MS, Bounds, Sessions
from tests.servers import AnyServer
from tests.state.toy import Engine

NOW = 1_000_000
KEY = SessionKey("host", "session-1")


async def fill(client: Client, keys: Keys, count: int, buffer: int = 8) -> list[int]:
    engine = Engine(Sessions(client, keys, Bounds(buffer=buffer)))
    for number in range(count):
        await engine.apply(KEY, [b"%d" % number], NOW + 10 * number)
    return [NOW + 10 * number for number in range(count)]


async def test_an_unknown_session_has_nothing_and_missed_nothing(client: Client, keys: Keys) -> None:
    page = await Replay(client, keys).read(KEY, 5)
    assert page == Page((), None, 0)
    assert not page.exhausted(5)


async def test_exhausted_is_said_only_when_something_behind_the_position_is_gone(
    client: Client, keys: Keys
) -> None:
    replay = Replay(client, keys)
    positions = await fill(client, keys, 8)
    assert not (await replay.read(KEY, 0)).exhausted(0)
    positions = await fill(client, keys, 20)
    held = (await replay.read(KEY)).entries
    assert len(held) == 8
    earliest, gone = held[0][0], (await replay.read(KEY)).trimmed_to
    assert (await replay.read(KEY)).earliest == earliest
    assert gone < earliest
    for after in (0, gone - 1, gone, earliest - 1, earliest, held[-1][0], held[-1][0] + 100):
        page = await replay.read(KEY, after)
        assert page.exhausted(after) == (after < gone)
        assert page.entries == tuple(entry for entry in held if entry[0] > after)
    assert positions


async def test_pages_join_without_a_seam(client: Client, keys: Keys) -> None:
    await fill(client, keys, 50, buffer=100)
    replay, after, found = Replay(client, keys), -1, []
    while (page := await replay.read(KEY, after, 7)).entries:
        found += page.entries
        after = found[-1][0]
    assert [body for _, body in found] == [b"%d" % number for number in range(50)]


async def test_a_stream_that_ran_out_is_exhausted_for_those_behind_it(client: Client, keys: Keys) -> None:
    await fill(client, keys, 3)
    events = keys.session(KEY).events
    await client.call(events, "DEL", events)
    top = NOW + 20
    page = await Replay(client, keys).read(KEY, top - 1)
    assert page == Page((), None, top)
    assert page.exhausted(top - 1)
    assert not page.exhausted(top)
    await Engine(Sessions(client, keys)).apply(KEY, [b"later"], NOW + DAY_MS)
    page = await Replay(client, keys).read(KEY, top)
    assert [body for _, body in page.entries] == [b"later"]
    assert not page.exhausted(top)
    assert page.exhausted(top - 1)


class Consumer:
    """Resumes by position: listens, then replays, then drops from live what it has."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.got: list[tuple[int, bytes]] = []
        self.exhausted = 0
        self.live: list[FeedEntry] | None = None

    def hear(self, shard: int, entries: Sequence[FeedEntry]) -> None:
        if self.live is not None:
            self.live += [entry for entry in entries if entry.key == KEY]

    def cut(self) -> None:
        self.drain()
        self.live = None

    async def resume(self) -> None:
        self.drain()
        self.live = []
        after = self.got[-1][0] if self.got else -1
        page = await self.replay.read(KEY, after, 3)
        self.exhausted += bool(self.got) and page.exhausted(after)
        while page.entries:
            self.got += page.entries
            page = await self.replay.read(KEY, self.got[-1][0], 3)

    def drain(self) -> None:
        """Take what is new of what was heard; only while live, as a real consumer would."""
        for entry in self.live or ():
            if not self.got or entry.seq > self.got[-1][0]:
                self.got.append((entry.seq, entry.body))
        if self.live is not None:
            self.live = []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.sampled_from([("cut", 0), ("resume", 0), ("race", 3), ("wait", 0), ("drop", 0)]),
    ),
    min_size=5,
    max_size=40,
)


def test_replay_and_live_cut_anywhere_give_every_event_once_in_order(redis_server: AnyServer) -> None:
    loop = asyncio.new_event_loop()

    async def story(steps: list[tuple[str, int]]) -> None:
        redis_server.flush()
        client = connect(redis_server.url, Limits(write=20, read=20, connect=20))
        keys = Keys("aep", redis_server.shards)
        engine = Engine(Sessions(client, keys, Bounds(buffer=1000)))
        consumer = Consumer(Replay(client, keys))
        reader = FeedReader(client, keys, consumer.hear, block_ms=100)
        reader.start()
        await reader.ready()
        written, now = 0, NOW

        async def write(count: int) -> None:
            nonlocal written, now
            for _ in range(count):
                body, written, now = b"%d" % written, written + 1, now + 3
                await engine.apply(KEY, [body], now)

        for what, count in steps:
            if what == "write":
                await write(count)
            elif what == "cut":
                consumer.cut()
            elif what == "resume":
                await consumer.resume()
            elif what == "race":
                await asyncio.gather(write(count), consumer.resume())
            elif what == "drop":
                for cursor in reader._cursors:
                    if cursor._link is not None:
                        cursor._link.drop()
            else:
                await asyncio.sleep(0.002)
        if consumer.live is None:
            await consumer.resume()
        async with asyncio.timeout(20):
            while len(consumer.got) < written:
                await asyncio.sleep(0.002)
                consumer.drain()
        assert [body for _, body in consumer.got] == [b"%d" % number for number in range(written)]
        assert consumer.exhausted == 0
        await reader.stop()
        await client.close()

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def check(steps: list[tuple[str, int]]) -> None:
        loop.run_until_complete(story(steps))

    try:
        check()
    finally:
        loop.close()
