"""`aep-kimi serve`: the service in the foreground, with a Redis of its own where none is configured."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.relay.link import Link
    from handlers.service import Service
    from handlers.settings import Settings
    from state.embedded import Embedded

GRACE_SECONDS = 3
TELL_SECONDS = 1.5
BACKLOG = 2_048
WATCH_SECONDS = 1.0


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "serve",
        help="run the service in the foreground",
        description="Run the service until SIGTERM or Ctrl+C. Without AEP_REDIS_URL it starts a private "
        "Redis-compatible server and says which one and where its data is. One line says when it is ready.",
    )
    parser.add_argument("--host", help="address to listen on (default: AEP_HOST or 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help="port to listen on, 0 for any free one (default: AEP_PORT or 8398)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    from handlers.errors import SettingsError
    from handlers.logs import configure
    from handlers.settings import Settings
    from state.errors import StateError

    configure("text", "info")
    try:
        settings = Settings.from_env()
        configure(settings.log, settings.log_level)
        if args.host is not None:
            settings = dataclasses.replace(settings, host=args.host)
        if args.port is not None:
            if not 0 <= args.port <= 65_535:
                raise SettingsError("--port", f"expected a number from 0 to 65535, not {args.port}")
            settings = dataclasses.replace(settings, port=args.port)
        settings = with_control_token(settings)
        listener = listen(settings.host, settings.port)
        with listener, redis(settings) as settings:
            return serve(settings, listener)
    except SettingsError as error:
        say(str(error))
        return 2
    except (StateError, OSError) as error:
        say(str(error))
        return 1


def with_control_token(settings: Settings) -> Settings:
    """The settings with a token for the command line, where control is on and there is no other.

    Raises SettingsError where none can be made: a request that nobody could answer must not exist.
    """
    if settings.controls is None or settings.token or settings.tokens_file:
        return settings
    from deploy.cli import secret
    from handlers.errors import SettingsError

    where = secret.path()
    try:
        token = secret.make(where)
    except secret.SecretError as error:
        raise SettingsError(settings.controls, f"needs a token, and {error}; set AEP_TOKEN") from None
    say(f"control is on and AEP_TOKEN is not set: the command line reads its token from {where}")
    return dataclasses.replace(settings, control_token=token)


def listen(host: str, port: int) -> socket.socket:
    """The listening socket. Raises `OSError` with a sentence that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it; asyncio does not set it on sockets that it did not make itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen on {host} port {port}: {reason}; choose another with --port") from None


@contextlib.contextmanager
def redis(settings: Settings) -> Iterator[Settings]:
    """The settings with a Redis that is there; what was started here is stopped at the end."""
    if settings.redis_url is not None:
        from handlers.preparation import preflight

        say("Redis is the one of AEP_REDIS_URL")
        asyncio.run(preflight(settings))
        yield settings
        return
    from state.embedded import start

    embedded = start(Path(settings.data_dir) if settings.data_dir else None)
    try:
        if embedded.durable:
            say(f"AEP_REDIS_URL is not set: using {embedded.kind}, data in {embedded.data_dir}")
        else:
            say(f"AEP_REDIS_URL is not set: using {embedded.kind}, NOT DURABLE: all is lost when this ends")
        with kept_alive(embedded):
            yield dataclasses.replace(settings, redis_url=embedded.url)
    finally:
        embedded.stop()


@contextlib.contextmanager
def kept_alive(embedded: Embedded) -> Iterator[None]:
    """Start the private server again when it dies: nobody else would."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            try:
                if embedded.revive():
                    say(f"the private server had ended and runs again, with its data in {embedded.data_dir}")
            except (StateError, OSError) as error:
                say(f"the private server has ended and does not start: {error}")
                ended.wait(10 * WATCH_SECONDS)

    from state.errors import StateError

    watcher = threading.Thread(target=watch, name="private-server", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def serve(settings: Settings, listener: socket.socket) -> int:
    """Serve on `listener` until a signal; the exit code."""
    import uvicorn

    from handlers.app import create_app

    app = create_app(settings)
    service = app.state.service
    address = base_url(listener)
    link = relay_link(service)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                say(
                    f"ready on {address}"
                    + ("" if service.gate.protected else " (no AEP_TOKEN: this machine only)")
                )
                tell_manager("READY=1")
                if link is not None:
                    link.start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            tell_manager("STOPPING=1")
            service.drain()
            if link is not None:
                await link.stop()
            # Consumers are told where they stand before the server cuts them off.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    while service.hub.consumers:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
            await super().shutdown(sockets)

    from deploy.cli.framed import FramedProtocol

    quiet = logging.getLogger("uvicorn.error")
    quiet.setLevel(logging.WARNING)
    quiet.addFilter(_expected)
    fast = {name for name in ("httptools", "uvloop") if importlib.util.find_spec(name) is not None}
    if "httptools" in fast:
        from deploy.cli.guarded import GuardedProtocol
    config = uvicorn.Config(
        app,
        http=GuardedProtocol if "httptools" in fast else "h11",
        loop="uvloop" if "uvloop" in fast else "asyncio",
        ws=FramedProtocol,
        ws_per_message_deflate=False,
        ws_max_size=2 * settings.max_body,
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    # uvicorn raises the signal again once it has stopped; by then the rest is ours to close in peace.
    before = signal.signal(signal.SIGTERM, _ignore)
    try:
        server = Server(config)
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    if not server.started:
        return 1
    say("stopped")
    return 0


def relay_link(service: Service) -> Link | None:
    """The link to the relay of the settings, not started yet."""
    from deploy.relay.transport import address_of

    address = address_of(service.settings)
    if address is None:
        return None
    from deploy.relay.link import Link

    return Link(service, address, service.settings.relay_token)


def base_url(listener: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def say(text: str) -> None:
    """One line for the person who started us."""
    print(f"aep-kimi: {text}", flush=True)


def tell_manager(state: str) -> None:
    """Tell the service manager that started us, if it wants to know (systemd's sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        # A name in the abstract namespace is written with @ in place of its first, zero byte.
        manager.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _expected(record: logging.LogRecord) -> bool:
    # A consumer that was let go in the middle of a blocked write ends exactly like this.
    return "without completing response" not in record.getMessage()


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
