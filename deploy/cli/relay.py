"""`aep-kimi relay`: the link to an AEP relay, in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.relay.transport import Address
    from handlers.service import Service
    from handlers.settings import Settings


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "relay",
        help="link this service to an AEP relay",
        description="Send the events of this service's own sessions to an AEP relay, and take the commands "
        "that it routes to them. Any number of these may run beside each other, and beside 'aep-kimi serve' "
        "with AEP_RELAY_URL set: one of them does the work, the others stand by.",
        epilog="AEP_RELAY_URL names the relay (ws:// or wss:// for a socket, http:// or https:// to post), "
        "AEP_RELAY_TOKEN is the token it wants; Redis and the rest as for 'aep-kimi serve'.",
    )
    parser.add_argument("--url", help="the relay (default: AEP_RELAY_URL)")
    parser.add_argument(
        "--http", action="store_true", help="post events instead of holding a socket; takes no commands"
    )
    parser.add_argument(
        "--once", action="store_true", help="send what is held now and stop; for a schedule, best with --http"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long --once may take (default: 60)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    from deploy.cli.serve import redis, say
    from deploy.relay.transport import address_of
    from handlers.errors import SettingsError
    from handlers.logs import configure
    from handlers.settings import Settings
    from state.errors import StateError

    configure("text", "info")
    try:
        settings = Settings.from_env(_with_url(args.url))
        configure(settings.log, settings.log_level)
        address = address_of(settings, posting=args.http)
        if address is None:
            raise SettingsError(
                "AEP_RELAY_URL", "not set; it names the relay, such as wss://relay.example.org"
            )
        with redis(settings) as settings:
            return asyncio.run(_work(settings, address, args.timeout if args.once else None))
    except SettingsError as error:
        say(str(error))
        return 2
    except (StateError, OSError) as error:
        say(str(error))
        return 1


async def _work(settings: Settings, address: Address, once: float | None) -> int:
    from deploy.relay.link import Link
    from handlers.claims import process_name
    from handlers.service import Service

    if settings.control_token is None:
        # Nobody connects to this process, so nobody needs to know it.
        settings = dataclasses.replace(settings, control_token=process_name() * 2)
    service = Service(settings)
    link = Link(service, address, settings.relay_token)
    try:
        if once is not None:
            await service.sessions.prepare()
            return 0 if await link.once(once) else 1
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        waiting = asyncio.create_task(told.wait())
        preparing = asyncio.create_task(_prepare(service))
        await asyncio.wait([waiting, preparing], return_when=asyncio.FIRST_COMPLETED)
        if preparing.done():
            await preparing
            running = link.start()
            await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
            await link.stop()
        preparing.cancel()
        return 0 if told.is_set() else 1
    finally:
        await service.stop()


async def _prepare(service: Service) -> None:
    """Wait until Redis is there. Raises LayoutMismatch where it is laid out otherwise."""
    from state.errors import LayoutMismatch, StateError

    while True:
        try:
            await service.sessions.prepare()
            return
        except LayoutMismatch:
            raise
        except StateError as error:
            logging.getLogger("aep-kimi relay").warning("Redis does not answer: %s", error)
            await asyncio.sleep(1)


def _with_url(url: str | None) -> dict[str, str] | None:
    return None if url is None else {**os.environ, "AEP_RELAY_URL": url}
