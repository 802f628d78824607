"""The command against a service: everything once, over both bindings, through kills and restarts."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.sink import size, work
from deploy.sink.source import Hopeless, Interrupted, Source, Wanted, lines
from deploy.sink.store import Store
from tests.app.duplex import duplex, event
from tests.app.processes import Process
from tests.app.replica import Replica, fresh_prefix, running, until
from tests.relay.lab import AUTHORIZATION, TOKEN, Fake, arrives, streams
from tests.relay.test_link import work as session
from tests.servers import AnyServer, free_port
from tests.sink.lab import Sink, contents, ids


def address(replica: Replica, binding: str) -> str:
    return replica.url.replace("http://", "ws://") if binding == "socket" else replica.url


async def holds(replica: Replica, out: Path) -> bool:
    """Whether the folder has exactly what the service replays of its own, in order."""
    ours = await streams(replica, own=True)
    theirs = {name.rpartition("/")[2]: events for name, events in contents(out).items()}
    return theirs == ours


@pytest.mark.parametrize("binding", ["stream", "socket"])
async def test_everything_is_written_once(redis_server: AnyServer, tmp_path: Path, binding: str) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with running(redis_server, **secret) as replica:
        await session(replica, "before")
        for number in range(3):
            sink = Sink(tmp_path, address(replica, binding), "--sync", "0.05", token=TOKEN)
            await session(replica, f"while{number}")
            await session(replica, "always", 2)
            await arrives(lambda: holds(replica, tmp_path))
            assert await asyncio.to_thread(sink.terminate) == 0
            assert sink.lines[-1].endswith("events written")
            await session(replica, f"between{number}")
        names = ids(tmp_path)
        assert len(names) == len(set(names))


async def test_once_writes_what_is_held_and_stops(redis_server: AnyServer, tmp_path: Path) -> None:
    async with running(redis_server) as replica:
        await session(replica, "s1")
        sink = Sink(tmp_path, replica.url, "--once", "--type", "tool.*")
        assert await asyncio.to_thread(sink.ended) == 0
        assert {each["type"] for events in contents(tmp_path).values() for each in events} == {
            "tool.requested",
            "tool.completed",
        }


@pytest.mark.parametrize("binding", ["stream", "socket"])
async def test_a_wrong_token_ends_it(redis_server: AnyServer, tmp_path: Path, binding: str) -> None:
    async with running(redis_server, token=TOKEN, headers=AUTHORIZATION) as replica:
        sink = Sink(tmp_path, address(replica, binding), token="not-this-one")
        assert await asyncio.to_thread(sink.ended) == 1
        assert "401" in sink.lines[-1]


async def test_an_endpoint_that_is_not_there_is_waited_for(redis_server: AnyServer, tmp_path: Path) -> None:
    port = free_port()
    sink = Sink(tmp_path, f"http://127.0.0.1:{port}", "--sync", "0.05")
    while not any("interrupted" in line for line in sink.lines):
        await asyncio.sleep(0.05)
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_EMITTER": "host",
    }
    replica = await asyncio.to_thread(lambda: Process(environment, port=port))
    try:
        async with running(
            redis_server, redis_prefix=environment["AEP_REDIS_PREFIX"], emitter="host"
        ) as feeder:
            await session(feeder, "s1")
            await arrives(lambda: holds(feeder, tmp_path))
    finally:
        await asyncio.to_thread(sink.terminate)
        await asyncio.to_thread(replica.kill)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--url", "ftp://x"), 2, "not a URL"),
        (("--url", "ws://127.0.0.1:1", "--once"), 2, "--once reads /stream"),
        (("--once",), 1, "no events from"),
    ],
)
async def test_what_cannot_work_is_said(
    tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    sink = Sink(tmp_path, "http://127.0.0.1:1", *arguments)
    assert await asyncio.to_thread(sink.ended) == code
    assert text in sink.lines[-1]


@pytest.mark.parametrize("binding", ["stream", "socket"])
async def test_what_looks_like_the_end_of_a_line_ends_none(
    redis_server: AnyServer, tmp_path: Path, binding: str
) -> None:
    """JSON strings may hold U+2028, U+2029 and U+0085 as they are."""
    name = "a\u2028b\u2029c\u0085d\u000ce"
    async with running(redis_server) as replica:
        await session(replica, name, 2)
        ours = await streams(replica, own=True)
        sink = Sink(tmp_path, address(replica, binding), "--sync", "0.05")

        async def whole() -> bool:
            return list(contents(tmp_path).values()) == list(ours.values())

        assert list(ours) == [name]
        await arrives(whole)
        assert await asyncio.to_thread(sink.terminate) == 0
        assert not any("no events" in line for line in sink.lines)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
async def test_lines_of_a_stream_end_as_the_standard_says(size: int) -> None:
    text = "data: a\u2028b\r\n\r\n: c\n\ndata: \u0085\rd\r\r\n\n".encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(text), size):
            yield text[at : at + size]
            yield b""

    found = [line.decode() async for line in lines(chunks())]
    assert found == ["data: a\u2028b", "", ": c", "", "data: \u0085", "d", "", ""]


def test_sizes() -> None:
    assert [size(text) for text in ("7", "2k", "64M", "1GB")] == [7, 2048, 64 << 20, 1 << 30]


async def test_what_others_posted_is_kept_apart_by_machine(redis_server: AnyServer, tmp_path: Path) -> None:
    async with running(redis_server) as replica, duplex(replica.url) as emitter:
        await emitter.hello("emitter")
        await session(replica, "same", 1)
        for host in ("one", "two"):
            source = f"aep://{host}/agent/other/session/same"
            await emitter.send(event("same", 5, source=source))
            await emitter.send(event("same", 3, source=source, id=f"late{host}"))
        await emitter.send({"type": "ping", "t": 1})
        await emitter.until(lambda frame: frame["type"] == "pong")
        sink = Sink(tmp_path, replica.url, "--once")
        assert await asyncio.to_thread(sink.ended) == 0
        found = contents(tmp_path)
        assert set(found) == {"testhost/kimi-code/same", "one/other/same", "two/other/same"}
        assert len(found["one/other/same"]) == 2


async def test_an_endpoint_without_replay_of_all_is_asked_by_position(tmp_path: Path) -> None:
    asked: list[Any] = []

    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        if frame["type"] == "hello":
            return {
                "type": "hello",
                "versions": ["0.1"],
                "role": "both",
                "capabilities": {"replay": {"buffer": 10}},
            }
        if frame["type"] == "subscribe":
            asked.append(frame["from"])
            ours = [event("s1", number, id=f"n{number}") for number in range(len(asked) * 2)]
            return [{"type": "subscribed", "id": "sink"}, {"type": "unheard-of"}, *ours]
        return None

    async with Fake(manner) as relay:
        store = Store(tmp_path, rotate=1 << 20)
        wanted = Wanted(relay.url, None, {}, None)
        task = asyncio.create_task(work(Source(wanted, store.positions), store, 0.01))
        for count in (1, 2, 3):
            async with asyncio.timeout(20):
                while len(asked) < count or store.count() < 2 * count:
                    await asyncio.sleep(0.02)
            relay.connections[-1].transport.abort()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.close()
    assert asked[0] == []
    assert asked[1] == [{"session": "s1", "epoch": 0, "seq": 1}]
    assert asked[2] == [{"session": "s1", "epoch": 0, "seq": 3}]
    assert ids(tmp_path)[:6] == [f"n{number}" for number in range(6)]


@pytest.mark.parametrize(("code", "kind"), [("unauthorized", Hopeless), ("limit-exceeded", Interrupted)])
async def test_a_refused_subscription(tmp_path: Path, code: str, kind: type[Exception]) -> None:
    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        return {"type": "error", "id": "sink", "code": code} if frame["type"] == "subscribe" else None

    async with Fake(manner) as relay:
        source = Source(Wanted(relay.url, None, {}, None, live=False), lambda limit: [])
        with pytest.raises(kind, match=code):
            await anext(source.events())


def tear(out: Path, generator: random.Random) -> None:
    """A torn last line, as a disk would leave it that lost the end of an unsynced write."""
    grown = sorted(path for path in out.glob("*/*/*.jsonl") if "~" not in path.name)
    if grown and generator.random() < 0.5:
        with open(generator.choice(grown), "ab") as file:
            file.write(b'{"aep":"0.1","id":"torn","type":"pro')


@pytest.mark.chaos
@pytest.mark.parametrize("binding", ["stream", "socket"])
async def test_killed_at_random_it_has_everything_once(
    redis_server: AnyServer, tmp_path: Path, binding: str
) -> None:
    """Twenty `kill -9` of the sink under load, small parts, and lines torn in between."""
    generator = random.Random(7)
    async with running(redis_server) as replica:
        done = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not done.is_set():
                number += 1
                await replica.hook("Notification", f"s{number % 5}", notification_type=f"n{number}")
                await asyncio.sleep(0.005)

        producer = asyncio.create_task(produce())
        url = address(replica, binding)
        repaired = 0
        for _ in range(20):
            sink = Sink(tmp_path, url, "--sync", "0.02", "--rotate", "8k")
            await until(lambda sink=sink: any("writing to" in line for line in sink.lines))  # type: ignore[misc]
            await asyncio.sleep(generator.uniform(0.05, 0.7))
            await asyncio.to_thread(sink.kill)
            repaired += any("repaired" in line for line in sink.lines)
            tear(tmp_path, generator)
        done.set()
        await producer
        sink = Sink(tmp_path, url, "--sync", "0.02", "--rotate", "8k")
        await until(lambda: any("writing to" in line for line in sink.lines))
        await arrives(lambda: holds(replica, tmp_path), 60)
        assert await asyncio.to_thread(sink.terminate) == 0
        names = ids(tmp_path)
        assert len(names) == len(set(names))
        assert repaired > 3
        assert any("~" in name for name in os.listdir(tmp_path / "testhost" / "kimi-code"))
        print(f"{binding}: {len(names)} events, 20 kills, {repaired} repairs, each event once and in order")
