"""`aep-kimi cancel SESSION`: ask a session to stop its run."""

from __future__ import annotations

import argparse
from typing import Any

from deploy.cli.instruct import order

CANCEL = "control.cancel"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "cancel",
        help="ask a session to stop its run",
        description="Ask a session to stop its run. One that is seen through its hooks cannot, and says so.",
        epilog="Exit codes: 0 accepted, 3 refused, 4 no answer in time.",
    )
    parser.add_argument("session", metavar="SESSION", help="its id or its end, '-' for the only live one")
    parser.add_argument("--reason", help="why, for the record")
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    data = {"scope": "run"} | ({"reason": args.reason} if args.reason else {})
    return order(args.url, "cancel", args.session, CANCEL, data)
