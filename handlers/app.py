"""The ASGI application: `handlers.app:app`, configured by the environment at its first use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from handlers.clock import Clock
from handlers.errors import Refused
from handlers.health import healthz, readyz
from handlers.hook_route import hook
from handlers.responses import refused
from handlers.service import Service
from handlers.settings import Settings
from handlers.stream import stream


def create_app(settings: Settings, *, clock: Clock | None = None, serverless: bool = False) -> Starlette:
    """An application of its own, with its own connections.

    `clock` moves time in tests. `serverless` is for hosts that freeze a process between requests: nothing
    runs in the background, and live streams are refused.
    """
    service = Service(settings, clock=clock, serverless=serverless)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=[
            Route("/hook", hook, methods=["POST"]),
            Route("/stream", stream, methods=["GET"]),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={Refused: refused},
    )
    app.state.service = service
    return app


class LazyApp:
    """Builds the application from the environment when the first scope arrives."""

    def __init__(self, *, serverless: bool = False) -> None:
        self._serverless = serverless
        self._app: Starlette | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = create_app(Settings.from_env(), serverless=self._serverless)
        await self._app(scope, receive, send)


app = LazyApp()
