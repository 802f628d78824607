"""One replica of the service inside the test's own event loop, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette

from deploy.cli.framed import FramedProtocol
from deploy.cli.serve import listen
from handlers.app import create_app
from handlers.clock import Clock, SystemClock
from handlers.service import Service
from handlers.settings import Settings
from tests.servers import AnyServer

_prefixes = itertools.count()

Event = dict[str, Any]


class MovableClock(SystemClock):
    """Wall time that a test can set; deadlines still run on the real one."""

    def __init__(self, now_ms: int | None = None) -> None:
        self.fixed: int | None = now_ms

    def now_ms(self) -> int:
        return self.fixed if self.fixed is not None else super().now_ms()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Replica:
    """A running replica and a client for it."""

    url: str
    app: Starlette
    client: httpx2.AsyncClient
    server: uvicorn.Server

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    async def hook(self, event: str, session: str = "s1", **fields: Any) -> httpx2.Response:
        """Post one hook payload."""
        payload = {"hook_event_name": event, "session_id": session, **fields}
        return await self.client.post("/hook", json=payload)

    async def replay(self, **parameters: str) -> Messages:
        """What `/stream` holds: `from=all` unless told otherwise."""
        response = await self.client.get("/stream", params={"from": "all", "live": "0", **parameters})
        assert response.status_code == 200, response.text
        messages = Messages()
        for line in response.text.split("\n"):
            messages.feed(line)
        return messages

    @contextlib.asynccontextmanager
    async def stream(self, headers: dict[str, str] | None = None, **parameters: str) -> AsyncIterator[Stream]:
        """A live stream; it is open when this returns."""
        async with self.client.stream("GET", "/stream", params=parameters, headers=headers or {}) as response:
            assert response.status_code == 200
            stream = Stream(response)
            await stream.until_comment("connected")
            yield stream


@dataclass
class Messages:
    """Server-sent messages as they were parsed."""

    events: list[Event] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    _data: str | None = None
    _id: str | None = None

    def feed(self, line: str) -> bool:
        """Take one line; True when it completed an event or was a comment."""
        if line == "":
            if self._data is None:
                return False
            self.events.append(json.loads(self._data))
            self.ids.append(self._id)
            self._data = self._id = None
            return True
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
            return True
        name, _, value = line.partition(": ")
        if name == "data":
            assert self._data is None, "the data of an event stands on one line"
            self._data = value
        elif name == "id":
            self._id = value
        return False


class Stream:
    """A live stream that is read as far as a test wants."""

    def __init__(self, response: httpx2.Response) -> None:
        self.messages = Messages()
        self._lines = response.aiter_lines()

    @property
    def events(self) -> list[Event]:
        return self.messages.events

    async def until_events(self, count: int, seconds: float = 20) -> list[Event]:
        """Read until `count` events are there."""
        async with asyncio.timeout(seconds):
            while len(self.events) < count:
                self.messages.feed(await anext(self._lines))
        return self.events

    async def until_comment(self, start: str, seconds: float = 20) -> str:
        """Read until a comment that begins with `start`."""
        async with asyncio.timeout(seconds):
            while True:
                if self.messages.feed(await anext(self._lines)) and self.messages.comments:
                    last = self.messages.comments[-1]
                    if last.startswith(start):
                        return last

    async def until_end(self, seconds: float = 20) -> Messages:
        """Read to the end of the stream."""
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                self.messages.feed(line)
        return self.messages


@contextlib.asynccontextmanager
async def running(
    server: AnyServer | str,
    *,
    clock: Clock | None = None,
    headers: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Replica]:
    """Run a replica on a free port until the end of the block."""
    settings.setdefault("redis_prefix", fresh_prefix())
    settings.setdefault("emitter", "testhost")
    settings.setdefault("hook_timeout_ms", 10_000)
    if not isinstance(server, str):
        settings.setdefault("shards", server.shards)
    app = create_app(
        Settings(redis_url=server if isinstance(server, str) else server.url, **settings), clock=clock
    )
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws=FramedProtocol,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=4,
    )
    asgi = _Server(config)
    task = asyncio.create_task(asgi.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        while not asgi.started:
            if task.done():
                await task
            await asyncio.sleep(0.005)
        async with httpx2.AsyncClient(base_url=url, timeout=30, headers=headers) as client:
            yield Replica(url, app, client, asgi)
    finally:
        app.state.service.drain()
        asgi.should_exit = True
        await task
        listener.close()


def fresh_prefix() -> str:
    """A Redis prefix that no other test has used on this server."""
    return f"t{next(_prefixes)}"


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that no event announces."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
