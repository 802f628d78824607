"""A service, a link and a relay in one event loop; the relay is a service of ours under another name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve

from deploy.relay.link import Link
from deploy.relay.transport import Address, Timing
from tests.app.replica import Event, Replica, fresh_prefix, running
from tests.servers import AnyServer

TOKEN = "relay-secret"
AUTHORIZATION = {"authorization": f"Bearer {TOKEN}"}
QUICK = Timing(
    lease_ms=3_000,
    renew=0.5,
    margin=0.2,
    poll=0.1,
    confirm=10,
    idle=0.3,
    beat=0.1,
    beat_ttl_ms=2_000,
    first_pause=0.05,
    longest_pause=0.5,
    unwelcome=0.1,
    steady=0.5,
)


@contextlib.asynccontextmanager
async def relays(server: AnyServer, **settings: Any) -> AsyncIterator[Replica]:
    """A relay of our own make."""
    made: dict[str, Any] = {"emitter": "relayhost", "token": TOKEN, "headers": AUTHORIZATION}
    async with running(server, **made | settings) as relay:
        yield relay


@contextlib.asynccontextmanager
async def linked(
    service: Replica, url: str, *, token: str | None = TOKEN, posting: bool = False, **timing: Any
) -> AsyncIterator[Link]:
    """A link of `service` to the relay at `url`, running until the end of the block."""
    address = Address.parse(url if posting else url.replace("http://", "ws://"))
    link = Link(service.service, address, token, timing=replace(QUICK, **timing))
    link.start()
    try:
        yield link
    finally:
        await link.stop()


async def arrives(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    """Wait for something that must be asked for."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


async def streams(replica: Replica, *, own: bool) -> dict[str, list[Event]]:
    """What a replica replays by session: its own events, or those of others."""
    found: dict[str, list[Event]] = {}
    for event in (await replica.replay()).events:
        mine = event["source"].startswith(f"aep://{replica.service.settings.emitter}/")
        if mine == own and "seq" in event:
            found.setdefault(event["session"], []).append(event)
    return found


async def same(service: Replica, relay: Replica, seconds: float = 30) -> dict[str, list[Event]]:
    """Wait until the relay holds exactly the service's streams, in order; returns them."""
    ours: dict[str, list[Event]] = {}

    async def equal() -> bool:
        nonlocal ours
        ours = await streams(service, own=True)
        return ours == await streams(relay, own=False)

    await arrives(equal, seconds)
    for events in ours.values():
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs))
    return ours


class Fake:
    """A relay that behaves as a test wants, and remembers what it was told.

    `manner` is asked about every frame: what to answer, None for the usual. The usual is to say hello and to
    answer pings.
    """

    def __init__(self, manner: Callable[[Fake, dict[str, Any]], object] | None = None) -> None:
        self.manner = manner
        self.events: list[Event] = []
        self.hellos: list[dict[str, Any]] = []
        self.connections: list[ServerConnection] = []
        self.frames: list[dict[str, Any]] = []
        self.url = ""
        self._server: Server | None = None

    async def __aenter__(self) -> Fake:
        self._server = await serve(self._serve, "127.0.0.1", 0, close_timeout=0.2, max_size=None)
        port = next(iter(self._server.sockets)).getsockname()[1]
        self.url = f"ws://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        for connection in self.connections:
            connection.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def say(self, frame: dict[str, Any]) -> None:
        """To whoever connected last."""
        await self.connections[-1].send(json.dumps(frame))

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        async for text in connection:
            frame = json.loads(text)
            answer = self.manner(self, frame) if self.manner is not None else None
            if answer == "close":
                await connection.close(1013, "try later")
                return
            if answer is not None:
                for each in answer if isinstance(answer, list) else [answer]:
                    await connection.send(json.dumps(each))
                continue
            self.frames.append(frame)
            if frame["type"] == "hello":
                self.hellos.append(frame)
                await connection.send(json.dumps({"type": "hello", "versions": ["0.1"], "role": "both"}))
            elif frame["type"] == "ping":
                await connection.send(json.dumps({"type": "pong", "t": frame["t"]}))
            elif "." in frame["type"]:
                self.events.append(frame)


def fresh() -> str:
    """A prefix for a second deployment on the same server."""
    return fresh_prefix()
