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
        help="check a file of events",
        description="Checks events, one JSON object a line: envelope, payload, order, terminals, the "
        "attention lifecycle, and that no event says more than its capture level. Every problem names its "
        "line and its rule. Exit status: 0 valid, 1 invalid, 2 not readable.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="a file of events in emission order, - for standard input"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing, only exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    name = "<stdin>" if args.file == "-" else args.file
    found = 0
    checker = _Lines()
    try:
        with nullcontext(sys.stdin.buffer) if args.file == "-" else open(args.file, "rb") as lines:
            for number, problem in checker.problems(lines):
                found += 1
                if not args.quiet:
                    print(f"{name}:{number}: {problem}")
    except OSError as error:
        print(f"aep-kimi validate: {name}: {error.strerror or error}", file=sys.stderr)
        return UNREADABLE
    if not args.quiet:
        print(f"{checker.events} events, {found} problems", file=sys.stderr)
    return INVALID if found else VALID


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
