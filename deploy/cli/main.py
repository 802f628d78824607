"""`aep-kimi`: one program, a subcommand a module, each loaded only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

COMMANDS = {
    "serve": "run the service in the foreground",
    "tail": "watch events as they happen, one line each",
    "timeline": "show one session as a tree",
    "pending": "list what waits for an answer",
    "respond": "answer a waiting request",
    "instruct": "give a session something to read with its next prompt",
    "cancel": "ask a session to stop its run",
    "sink": "write events to files, one JSON line each",
    "validate": "check a file of events",
    "relay": "link this service to an AEP relay",
    "web": "watch a running 'kimi web'",
    "acp": "watch an editor's session: aep-kimi acp -- kimi acp",
    "token": "make, list and revoke tokens",
    "doctor": "look for what is wrong",
}

EPILOG = """\
Every command explains itself: aep-kimi COMMAND --help.
Settings come from the environment: AEP_URL is where the service is found (default http://127.0.0.1:8398),
AEP_TOKEN the token it wants. The README has the whole table.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 refused by the session, 4 no answer in time,
130 interrupted.
"""


def load(name: str) -> ModuleType:
    """The module of a subcommand. It has `add_parser(subparsers)` and `run(args) -> int`."""
    return import_module(f"deploy.cli.{name}")


def available() -> list[str]:
    """The subcommands that this installation has."""
    return [name for name in COMMANDS if find_spec(f"deploy.cli.{name}") is not None]


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the chosen subcommand's module is loaded, the others are just named."""
    parser = argparse.ArgumentParser(
        prog="aep-kimi",
        description="Watches and steers Kimi Code CLI: runs the service, shows its events, answers requests.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in available():
        if name == chosen:
            load(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=COMMANDS[name], add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(chosen if chosen in available() else None)
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return int(load(args.command).run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
