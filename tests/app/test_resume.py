"""A consumer that is cut twenty times while replicas are killed: nothing missing, nothing out of order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
from typing import Any

import httpx2
import pytest
from websockets.exceptions import WebSocketException

from tests.app.duplex import duplex
from tests.app.processes import Process, processes
from tests.app.replica import Event, Messages, fresh_prefix, running, until
from tests.servers import AnyServer

pytestmark = pytest.mark.slow

SECONDS = 15
RATE = 200
CUTS = 20
SESSIONS = [f"s{number}" for number in range(5)]


class Fleet:
    """Three replicas, one of which is killed and replaced now and then."""

    def __init__(self, replicas: list[Process], environment: dict[str, str]) -> None:
        self.replicas = replicas
        self._environment = environment

    def url(self, generator: random.Random) -> str:
        return generator.choice(self.replicas).url

    async def replace(self, number: int) -> None:
        old = self.replicas[number]
        await asyncio.to_thread(old.kill)
        self.replicas[number] = await asyncio.to_thread(Process, self._environment)


async def produce(fleet: Fleet, stored: set[str], done: asyncio.Event) -> None:
    """About `RATE` hooks a second, each tried until a replica says that it is stored."""
    generator = random.Random(1)
    async with httpx2.AsyncClient(timeout=10) as client:

        async def one(number: int) -> None:
            name = f"n{number}"
            payload = {
                "hook_event_name": "Notification",
                "session_id": SESSIONS[number % len(SESSIONS)],
                "notification_type": name,
            }
            with contextlib.suppress(httpx2.HTTPError):
                response = await client.post(f"{fleet.url(generator)}/hook", json=payload)
                if response.headers.get("aep-stored") == "yes":
                    stored.add(name)

        tasks = []
        for number in range(SECONDS * RATE):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(1 / RATE)
        await asyncio.gather(*tasks)
    done.set()


class Reader:
    """What a consumer keeps across its connections."""

    def __init__(self) -> None:
        self.order: dict[str, list[int]] = {name: [] for name in SESSIONS}
        self.seen: dict[tuple[str, str], Event] = {}

    def take(self, event: Event) -> None:
        key = event["source"], event["id"]
        assert key not in self.seen, "an event came twice, though it was resumed by position"
        self.seen[key] = event
        self.order[event["session"]].append(event["seq"])

    def positions(self) -> str:
        return json.dumps(
            [
                {"session": name, "epoch": 0, "seq": seqs[-1] if seqs else 0}
                for name, seqs in self.order.items()
            ]
        )

    def names(self) -> set[str]:
        return {event["subject"] for event in self.seen.values()}


async def read_sse(url: str, reader: Reader, count: int, seconds: float) -> None:
    messages = Messages()
    parameters = {"from": reader.positions()}
    async with (
        asyncio.timeout(seconds),
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("GET", f"{url}/stream", params=parameters) as response,
    ):
        async for line in response.aiter_lines():
            before = len(messages.events)
            messages.feed(line)
            if len(messages.events) > before:
                reader.take(messages.events[-1])
                count -= 1
                if count == 0:
                    return


async def read_ws(url: str, reader: Reader, count: int, seconds: float) -> None:
    async with asyncio.timeout(seconds), duplex(url) as consumer:
        await consumer.hello()
        await consumer.send({"type": "subscribe", "id": "s", "from": json.loads(reader.positions())})
        while count:
            text = await consumer.connection.recv()
            frame = json.loads(text)
            if "." in frame["type"]:
                reader.take(frame)
                count -= 1


async def consume(
    fleet: Fleet, read: Any, seed: int, done: asyncio.Event, stored: set[str]
) -> tuple[Reader, int]:
    """Read in pieces of random length from random replicas, until all that was stored is there."""
    generator = random.Random(seed)
    reader = Reader()
    cuts = 0
    while not done.is_set() or not stored <= reader.names():
        with contextlib.suppress(TimeoutError, httpx2.HTTPError, WebSocketException, OSError):
            piece = generator.randrange(20, SECONDS * RATE // CUTS)
            await read(fleet.url(generator), reader, piece, generator.uniform(0.5, 3))
        cuts += 1
        await asyncio.sleep(0.01)
    return reader, cuts


async def test_cut_at_random_while_replicas_are_killed(redis_server: AnyServer) -> None:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }
    stored: set[str] = set()
    done = asyncio.Event()
    with processes(3, environment) as replicas:
        fleet = Fleet(replicas, environment)
        async with asyncio.timeout(240):
            producer = asyncio.create_task(produce(fleet, stored, done))
            consumers = [
                asyncio.create_task(consume(fleet, read, seed, done, stored))
                for seed, read in enumerate((read_sse, read_ws))
            ]
            for number in (0, 1, 2):
                await asyncio.sleep(SECONDS / 5)
                await fleet.replace(number)
            await producer
            results = await asyncio.gather(*consumers)
    for (reader, cuts), name in zip(results, ("SSE", "WebSocket"), strict=True):
        assert cuts >= CUTS
        assert stored <= reader.names()
        for seqs in reader.order.values():
            assert seqs == sorted(set(seqs))
        print(f"{name}: {len(reader.seen)} events over {cuts} connections, {len(stored)} known to be stored")


@pytest.mark.parametrize("count", [500])
async def test_many_consumers_on_one_process(redis_server: AnyServer, count: int) -> None:
    """Memory and Redis connections, for SSE and for WebSocket; connections do not grow with consumers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8_192)), hard))
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
    }
    with processes(1, environment) as (process,):
        async with running(redis_server, redis_prefix=environment["AEP_REDIS_PREFIX"]) as feeder:
            await feeder.hook("Notification", "warm")
            for binding in ("sse", "ws"):
                before = _resident_kib(process.process.pid)
                connections = _connections(redis_server)
                got = await _fan_out(process.url, binding, count, feeder)
                after = _resident_kib(process.process.pid)
                assert got == count
                assert _connections(redis_server) == connections
                each = (after - before) / count
                print(f"{binding}: {count} consumers, {each:.1f} KiB each, {connections} Redis connections")


async def _fan_out(url: str, binding: str, count: int, feeder: Any) -> int:
    async with contextlib.AsyncExitStack() as stack:
        if binding == "sse":
            limits = httpx2.Limits(max_connections=None)
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=60, limits=limits))
            lines = []
            for _ in range(count):
                response = await stack.enter_async_context(client.stream("GET", f"{url}/stream"))
                lines.append(response.aiter_lines())
            await feeder.hook("Notification", "told")

            async def wait(source: Any) -> int:
                async for line in source:
                    if line.startswith("data: "):
                        return 1
                return 0

            return sum(await asyncio.gather(*(wait(source) for source in lines)))
        consumers = []
        for _ in range(count):
            consumer = await stack.enter_async_context(duplex(url))
            await consumer.hello()
            await consumer.subscribe()
            consumers.append(consumer)
        await feeder.hook("Notification", "told")
        return sum([len(await consumer.events(1)) for consumer in consumers])


def _resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def _connections(server: AnyServer) -> int:
    return len(server.run("CLIENT", "LIST").splitlines())


async def test_a_subscriber_is_live_at_once(redis_server: AnyServer) -> None:
    """What is committed after the stream was opened arrives, however soon."""
    async with running(redis_server) as replica:
        for number in range(20):
            async with replica.stream() as stream:
                await replica.hook("Notification", f"s{number}")
                await stream.until_events(1)
        await until(lambda: len(replica.service.hub) == 0)
