"""Two link processes, a relay that is killed ten times, a Redis that restarts, a link that freezes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.app.duplex import Frame, command, duplex
from tests.app.processes import Command, Process
from tests.app.replica import Event, Messages, Replica, fresh_prefix, running, until
from tests.relay.lab import AUTHORIZATION, TOKEN, arrives, streams
from tests.servers import AnyServer, Server, free_port

pytestmark = pytest.mark.chaos

INSTRUCT = "x.kimi-code.control.instruct"
KILLS = 10
SESSIONS = [f"s{number}" for number in range(6)]


class LinkProcess(Command):
    """A running `aep-kimi relay`."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment, "relay")

    @property
    def bound(self) -> bool:
        """Whether the last it said of the matter is that it is linked."""
        told = [line for line in self.lines if "linked" in line]
        return bool(told) and "not linked" not in told[-1]


@contextlib.contextmanager
def links(count: int, environment: dict[str, str]) -> Iterator[list[LinkProcess]]:
    """`count` link processes, killed at the end if they are still there."""
    started = [LinkProcess(environment) for _ in range(count)]
    try:
        yield started
    finally:
        for link in started:
            if link.process.poll() is None:
                link.kill()


class Relay:
    """A relay on a port of its own that can be killed and started again on its data."""

    def __init__(self, server: AnyServer) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            "AEP_REDIS_URL": server.url,
            "AEP_REDIS_PREFIX": fresh_prefix(),
            "AEP_SHARDS": str(server.shards),
            "AEP_EMITTER": "relayhost",
            "AEP_TOKEN": TOKEN,
            "AEP_HOOK_TIMEOUT_MS": "5000",
        }
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(lambda: Process(self._environment, port=self.port))

    async def kill(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.kill)
            self._process = None

    async def streams(self) -> dict[str, list[Event]]:
        """What it replays, by session."""
        messages = Messages()
        async with httpx2.AsyncClient(timeout=30, headers=AUTHORIZATION) as client:
            response = await client.get(f"{self.url}/stream", params={"from": "all", "live": "0"})
            for line in response.text.split("\n"):
                messages.feed(line)
        found: dict[str, list[Event]] = {}
        for event in messages.events:
            found.setdefault(event["session"], []).append(event)
        return found

    async def ask(self, session: str, seconds: float = 15) -> Frame | None:
        """Instruct a session through it; the answer, None for silence."""
        asked = command(session, INSTRUCT, data={"text": "go on"})
        async with duplex(self.url, TOKEN) as sender:
            await sender.hello()
            await sender.subscribe()
            await sender.send(asked)
            with contextlib.suppress(TimeoutError):
                return await sender.until(lambda frame: frame.get("cause") == asked["id"], seconds)
        return None

    async def claimants(self, session: str) -> int:
        async with duplex(self.url, TOKEN) as consumer:
            await consumer.hello()
            await consumer.send({"type": "roster", "id": "r"})
            entries = (await consumer.answer("roster", "r"))["entries"]
        return sum(entry["session"] == session for entry in entries)


def environment_of(service: Replica, relay: Relay) -> dict[str, str]:
    settings = service.service.settings
    return {
        "AEP_REDIS_URL": settings.redis_url or "",
        "AEP_REDIS_PREFIX": settings.redis_prefix,
        "AEP_SHARDS": str(settings.shards),
        "AEP_EMITTER": settings.emitter,
        "AEP_INSTRUCT": "1",
        "AEP_HOOK_TIMEOUT_MS": "2000",
        "AEP_RELAY_URL": relay.url.replace("http://", "ws://"),
        "AEP_RELAY_TOKEN": TOKEN,
    }


async def produce(service: Replica, done: asyncio.Event) -> int:
    """Hooks, each told until it is stored; how many."""
    number = 0
    while not done.is_set():
        number += 1
        session = SESSIONS[number % len(SESSIONS)]
        while True:
            response = await service.hook("Notification", session, notification_type=f"n{number}")
            if response.headers["aep-stored"] == "yes":
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.01)
    return number


async def equal(service: Replica, relay: Relay) -> bool:
    """Whether the relay holds exactly our streams, and these rise."""
    ours = await streams(service, own=True)
    for events in ours.values():
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs))
    return bool(ours) and ours == await relay.streams()


async def test_nothing_is_lost_and_nobody_speaks_twice(redis_server: AnyServer, own_server: Server) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION, "instruct": True}
    relay = Relay(redis_server)
    async with running(own_server, hook_timeout_ms=5_000, **secret) as service:
        for session in SESSIONS:
            await service.hook("SessionStart", session, source="startup")
        done = asyncio.Event()
        producer = asyncio.create_task(produce(service, done))
        with links(2, environment_of(service, relay)) as both:
            try:
                outages = []
                for number in range(KILLS):
                    await relay.start()
                    started = time.monotonic()
                    await until(lambda: any(link.bound for link in both), 60)
                    outages.append(time.monotonic() - started)
                    if number == KILLS // 2:
                        await asyncio.to_thread(own_server.kill)
                        await asyncio.sleep(0.5)
                        await asyncio.to_thread(own_server.start)
                    await asyncio.sleep(1)
                    await relay.kill()
                    await until(lambda: not any(link.bound for link in both), 60)
                await relay.start()
                await until(lambda: any(link.bound for link in both), 60)
                done.set()
                count = await producer
                await arrives(lambda: equal(service, relay), 60)
                for session in SESSIONS:
                    # A relay that was killed is forgotten by its other replicas after seconds.
                    await arrives(lambda session=session: claimed_by(relay, session, 1))  # type: ignore[misc]
                answer = await relay.ask("s0")
                assert answer is not None
                assert answer["type"] == "control.accepted"
                await arrives(lambda: equal(service, relay), 60)
                worst = max(outages)
                print(
                    f"{count} events, {KILLS} kills; linked again within {worst:.1f} s of the relay's start"
                )
            finally:
                done.set()
                await relay.kill()


async def test_a_link_that_freezes_is_succeeded(redis_server: AnyServer, own_server: Server) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION, "instruct": True}
    relay = Relay(redis_server)
    async with running(own_server, hook_timeout_ms=5_000, **secret) as service:
        await service.hook("SessionStart", "s0", source="startup")
        done = asyncio.Event()
        producer = asyncio.create_task(produce(service, done))
        await relay.start()
        with links(2, environment_of(service, relay)) as both:
            try:
                await until(lambda: any(link.bound for link in both), 60)
                await asyncio.sleep(1)
                owner = next(link for link in both if link.bound)
                other = next(link for link in both if link is not owner)
                owner.signal(signal.SIGSTOP)
                frozen = time.monotonic()
                await until(lambda: other.bound, 60)
                waited = time.monotonic() - frozen
                assert waited > 5
                # Two sockets claim it until the relay drops the frozen one.
                await arrives(lambda: claimed_by(relay, "s0", 2))
                answer = await relay.ask("s0")
                assert answer is not None
                assert answer["code"] == "ambiguous"
                owner.signal(signal.SIGCONT)
                await until(lambda: not owner.bound)
                await arrives(lambda: claimed_by(relay, "s0", 1), 60)
                assert other.bound
                answer = await relay.ask("s0")
                assert answer is not None
                assert answer["type"] == "control.accepted"
                done.set()
                count = await producer
                await arrives(lambda: equal(service, relay), 60)
                assert sum(link.bound for link in both) == 1
                print(f"{count} events; the successor was linked {waited:.1f} s after the freeze")
                other.signal(signal.SIGTERM)
                assert await asyncio.to_thread(other.ended) == 0
                await until(lambda: owner.bound, 10)
            finally:
                done.set()
                await relay.kill()


async def claimed_by(relay: Relay, session: str, count: int) -> bool:
    return await relay.claimants(session) == count


async def test_serve_links_by_itself(redis_server: AnyServer) -> None:
    """`aep-kimi serve` with AEP_RELAY_URL: two replicas, one link, any replica says so."""
    relay = Relay(redis_server)
    await relay.start()
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_EMITTER": "servehost",
        "AEP_RELAY_URL": relay.url.replace("http://", "ws://"),
        "AEP_RELAY_TOKEN": TOKEN,
    }
    replicas = [await asyncio.to_thread(Process, environment) for _ in range(2)]
    try:
        async with httpx2.AsyncClient(timeout=10) as client:

            async def bound() -> bool:
                answers = [await client.get(f"{replica.url}/healthz") for replica in replicas]
                return all(answer.json()["relay"] for answer in answers)

            await arrives(bound)
            payload = {"hook_event_name": "SessionStart", "session_id": "s1", "source": "startup"}
            await client.post(f"{replicas[1].url}/hook", json=payload)

            async def told() -> bool:
                return "s1" in await relay.streams()

            await arrives(told)
            await relay.kill()

            async def unbound() -> bool:
                return not await bound()

            await arrives(unbound)
        for replica in replicas:
            assert await asyncio.to_thread(replica.terminate) == 0
    finally:
        await relay.kill()
        for replica in replicas:
            if replica.process.poll() is None:
                await asyncio.to_thread(replica.kill)
