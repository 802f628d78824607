"""Heads that are too large or too slow, against the protocol that `aep-kimi serve` uses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from deploy.cli.guarded import GuardedProtocol
from deploy.cli.serve import listen

NAME = "deploy.cli.guarded:GuardedProtocol"


def test_uvicorn_takes_it_by_name() -> None:
    context = uvicorn.main.make_context("uvicorn", ["handlers.app:app", "--http", NAME])
    config = uvicorn.Config(Starlette(), http=context.params["http"], ws="none", log_config=None)
    config.load()
    assert config.http_protocol_class is GuardedProtocol


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Quick(GuardedProtocol):
    head_seconds = 0.5


async def hello(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse("hello")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/", hello, methods=["GET", "POST"])])
    config = uvicorn.Config(app, http=Quick, lifespan="off", log_config=None, access_log=False)
    server = _Server(config)
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    await task
    listener.close()


async def exchange(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """All that the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = bytearray()

    async def listen() -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                said.extend(chunk)

    listening = asyncio.create_task(listen())
    try:
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)
            await listening
            return bytes(said)
    finally:
        writer.close()


async def test_ordinary_requests(port: int) -> None:
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"y" * 200_000
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = await exchange(port, request, request, b"GET / HTTP/1.1\r\n", b"host: x\r\n\r\n", last, pause=0.05)
    assert said.count(b"200 OK") == 4


async def test_a_body_may_take_longer_than_a_head(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    assert b"200 OK" in await exchange(port, head, b"y", b"y", b"y", b"y", pause=0.3)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_head_that_is_too_large(port: int, whole: bool) -> None:
    lines = [
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        *(b"x-%d: %b\r\n" % (n, b"y" * 1_000) for n in range(100)),
        b"\r\n",
    ]
    said = await exchange(port, *([b"".join(lines)] if whole else lines))
    assert b"200 OK" not in said


async def test_one_header_without_an_end(port: int) -> None:
    said = await exchange(port, b"GET / HTTP/1.1\r\nhost: x\r\nx: ", *(b"y" * 10_000 for _ in range(20)))
    assert b"200 OK" not in said


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"GET / HTTP/1.1\r\n",),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", *([b"x"] * 20)),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nx: ", *([b"x"] * 20)),
    ],
)
async def test_a_head_that_is_too_slow(port: int, parts: tuple[bytes, ...]) -> None:
    said = await exchange(port, *parts, pause=0.1)
    assert said.count(b"200 OK") == (1 if len(parts) > 1 and parts[0].endswith(b"\r\n\r\n") else 0)
