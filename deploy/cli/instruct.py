"""`aep-kimi instruct SESSION TEXT`: give a session something to read with its next prompt."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from deploy.cli.client import Service, ServiceError
from deploy.cli.wire import FAILED, command, connect, deliver, live_sessions, pick, say

INSTRUCT = "x.kimi-code.control.instruct"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "instruct",
        help="give a session something to read with its next prompt",
        description="Queue a text that the session's model reads with the next prompt, once.",
        epilog="Exit codes: 0 accepted, 3 refused, 4 no answer in time. "
        "Example: aep-kimi instruct - 'use the staging registry from now on'",
    )
    parser.add_argument("session", metavar="SESSION", help="its id or its end, '-' for the only live one")
    parser.add_argument("text", metavar="TEXT", nargs="+", help="what to read; '-' reads standard input")
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    text = sys.stdin.read() if args.text == ["-"] else " ".join(args.text)
    return order(args.url, "instruct", args.session, INSTRUCT, {"text": text})


def order(url: str | None, name: str, session: str, kind: str, data: dict[str, Any]) -> int:
    """Send a command to one live session and say what became of it; the exit code."""
    try:
        with connect(Service(url)) as wire:
            target = pick(live_sessions(wire), session, "live session")
            result = deliver(wire, command(kind, target, data))
            say(name, result)
            return result.code
    except (ServiceError, ConnectionError) as error:
        print(f"aep-kimi {name}: {error}", file=sys.stderr)
        return FAILED
