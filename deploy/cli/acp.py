"""`aep-kimi acp`: be an editor's agent command, and let the service watch."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8398"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "acp",
        help="watch an editor's session: aep-kimi acp -- kimi acp",
        description=(
            "Run an ACP agent for an editor and let the service watch. Bytes, signals and the exit code pass "
            "unchanged; a service that is down or slow is not noticed."
        ),
        epilog="Put this in the editor's settings as the agent command: aep-kimi acp -- kimi acp",
    )
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="read the bearer token from FILE (default: AEP_TOKEN)"
    )
    parser.add_argument(
        "agent", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the agent and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    agent = args.agent[1:] if args.agent[:1] == ["--"] else args.agent
    if not agent:
        print("aep-kimi acp: which agent? For example: aep-kimi acp -- kimi acp", file=sys.stderr)
        return 2
    if os.name != "posix":
        return subprocess.call(agent)
    from deploy.acp import tee

    url = args.url or os.environ.get("AEP_URL") or DEFAULT_URL
    observer = [sys.executable, "-I", "-m", "deploy.acp.observer", url]
    if args.token_file:
        observer.append(os.path.abspath(args.token_file))
    return tee.run(agent, observer)
