"""`aep-kimi validate`: is a file of events what AEP-0001 to AEP-0004 allow?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import BinaryIO

from handlers.aep.canonical import parse
from handlers.aep.streams import StreamChecker
from handlers.aep.validation import Problem
from handlers.errors import InvalidJSON

VALID, INVALID, UNREADABLE = 0, 1, 2
_JSONL = "AEP-0003 §3.1"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to `aep-kimi`."""
    parser = subparsers.add_parser(
        "validate",
        help="check files of events",
        description="Checks events, one JSON object a line: envelope, payload, order, terminals, the "
        "attention lifecycle, and that no event says more than its capture level. Each file stands for "
        "itself. Every problem names its file, its line and its rule. Exit status: 0 all are valid, 1 one is "
        "not, 2 one is not readable.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a file of events in emission order, - for standard input",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing, only exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    worst = VALID
    events = found = 0
    for file in args.files:
        name = "<stdin>" if file == "-" else file
        checker = _Lines()
        try:
            with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as lines:
                for number, problem in checker.problems(lines):
                    found += 1
                    worst = max(worst, INVALID)
                    if not args.quiet:
                        print(f"{name}:{number}: {problem}")
        except OSError as error:
            print(f"aep-kimi validate: {name}: {error.strerror or error}", file=sys.stderr)
            worst = UNREADABLE
        events += checker.events
    if not args.quiet and (worst != UNREADABLE or len(args.files) > 1):
        print(f"{events} events, {found} problems", file=sys.stderr)
    return worst


class _Lines:
    """The problems of a stream of lines, numbered from 1; `events` counts the lines that were not blank."""

    def __init__(self) -> None:
        self.events = 0

    def problems(self, lines: BinaryIO | Iterable[bytes]) -> Iterator[tuple[int, Problem]]:
        checker = StreamChecker()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                yield number, Problem(_JSONL, "", "a blank line")
                continue
            self.events += 1
            try:
                event = parse(line)
            except InvalidJSON as error:
                yield number, Problem(_JSONL, "", f"not JSON: {error}")
                continue
            for problem in checker.check(event):
                yield number, problem
