"""`aep-kimi web`: let the service watch what happens in `kimi web`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HEALTH_PORT = 4323


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "web",
        help="watch a running 'kimi web'",
        description="Watch every running 'kimi web' of this user and hand what happens there to the service, "
        "until Ctrl+C. Servers and sessions may come and go. It never wakes a session that nobody uses.",
    )
    parser.add_argument(
        "--home", metavar="DIR", help="Kimi Code's home (default: KIMI_CODE_HOME or ~/.kimi-code)"
    )
    parser.add_argument(
        "--server", metavar="URL", help="watch the server at this address (default: those that run)"
    )
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="read the service's token from FILE (default: AEP_TOKEN)"
    )
    parser.add_argument(
        "--mode",
        choices=("companion", "primary"),
        help="companion beside hooks, primary without (default: the service's AEP_KIMI_WEB_MODE)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=HEALTH_PORT,
        help=f"port of the health answer (default: {HEALTH_PORT}, 0: any)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    from deploy.cli import client
    from deploy.web import home, link

    logging.basicConfig(level=logging.INFO, format="aep-kimi web: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        server = None if args.server is None else address(args.server)
        url = client.address(args.url)
        if not 0 <= args.port <= 65_535:
            raise ValueError(f"--port: expected a number from 0 to 65535, not {args.port}")
        token = client.bearer(Path(args.token_file).read_text("ascii") if args.token_file else None)
    except (ValueError, OSError, client.ServiceError) as error:
        print(f"aep-kimi web: {error}", file=sys.stderr)
        return 2
    place = home.locate(args.home, os.environ)
    options = link.Options(place, url, token, args.mode, server, args.port)
    print(f"aep-kimi web: looking for 'kimi web' in {place}, telling {url}", flush=True)
    asyncio.run(link.run(options))
    return 0


def address(url: str) -> Any:
    """The address in a URL. Raises `ValueError`."""
    from deploy.web.home import Address

    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--server: expected an address such as http://127.0.0.1:58627, not {url!r}")
    secure = parts.scheme == "https"
    return Address(parts.hostname, parts.port or (443 if secure else 80), secure)
