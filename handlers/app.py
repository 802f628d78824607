"""The ASGI application: `handlers.app:app`, configured by the environment at its first use."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from handlers.clock import Clock
from handlers.errors import Refused
from handlers.events_route import describe, post_events
from handlers.frames_acp import frames_acp
from handlers.frames_web import frames_web
from handlers.health import healthz, readyz
from handlers.hook_route import HookFront
from handlers.metrics import metrics
from handlers.request_ids import Identified
from handlers.responses import refused
from handlers.service import Service
from handlers.settings import Settings
from handlers.socket import socket
from handlers.stream import stream

_TOKEN = re.compile(r"(access_token)=[^&\s\"]*")
_SERVER_LINES = 20
_Handler = Callable[[int, FrameType | None], object]


class Application(Starlette):
    """Starlette, and ahead of it the hooks: they are nearly all of the traffic, and an agent waits for each.

    Where a server's root path makes their path another one, they take the router as everybody does.
    """

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(**options)
        self.state.service = service
        self._hooks = HookFront(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/hook" and scope["method"] == "POST":
            await self._hooks(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings, *, clock: Clock | None = None, serverless: bool = False) -> Starlette:
    """An application of its own, with its own connections.

    `clock` moves time in tests. `serverless` is for hosts that freeze a process between requests: nothing
    runs in the background, and live streams are refused.
    """
    service = Service(settings, clock=clock, serverless=serverless)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        _drain_on_signal(service)
        try:
            yield
        finally:
            await service.stop()

    app = Application(
        service,
        routes=[
            Route("/hook", HookFront(service), methods=["POST"]),
            Route("/frames/acp", frames_acp, methods=["POST"]),
            Route("/frames/web", frames_web, methods=["POST"]),
            Route("/stream", stream, methods=["GET"]),
            Route("/events", describe, methods=["GET"]),
            Route("/events", post_events, methods=["POST"]),
            Route("/.well-known/aep", describe, methods=["GET"]),
            WebSocketRoute("/socket", socket),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Identified)],
        exception_handlers={Refused: refused},
    )
    for name in ("uvicorn.error", "uvicorn.access"):
        if not any(isinstance(known, ServerLog) for known in logging.getLogger(name).filters):
            logging.getLogger(name).addFilter(ServerLog())
    return app


def _drain_on_signal(service: Service) -> None:
    """Begin to drain when the server is told to stop: it would wait for its streams, and they for nothing.

    Servers install their handlers before they start the application, so ours runs first and then theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        theirs = signal.getsignal(number)
        if not callable(theirs) or theirs is signal.default_int_handler:
            continue

        def ours(number: int, frame: FrameType | None, then: _Handler = theirs) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(service.drain)
            then(number, frame)

        signal.signal(number, ours)


class ServerLog(logging.Filter):
    """What a server may log of requests, without `?access_token=` (AEP-0003 §8.1).

    Dropped is what uvicorn says, an error, of each handshake that was answered with a status: the audit has
    a line of its own for it. Warnings and errors, which anybody causes with what is no HTTP, are at most 20 a
    second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == "ASGI callable returned without completing handshake.":
            return False
        if record.levelno >= logging.WARNING and not self._room(int(record.created)):
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_scrub(entry) for entry in record.args)
        return True

    def _room(self, second: int) -> bool:
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines <= _SERVER_LINES


def _scrub(entry: object) -> object:
    return _TOKEN.sub(r"\1=…", entry) if isinstance(entry, str) else entry


class LazyApp:
    """Builds the application from the environment when the first scope arrives."""

    def __init__(self, *, serverless: bool = False) -> None:
        self._serverless = serverless
        self._app: Starlette | None = None

    @property
    def service(self) -> Service:
        """The service behind it, made where there is none yet. Raises `SettingsError`."""
        service: Service = self._made().state.service
        return service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._made()(scope, receive, send)

    def _made(self) -> Starlette:
        if self._app is None:
            self._app = create_app(Settings.from_env(), serverless=self._serverless)
        return self._app


app = LazyApp()
