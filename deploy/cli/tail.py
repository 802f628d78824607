"""`aep-kimi tail`: events as they happen, one line each."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime
from typing import Any

from deploy.cli.client import Event, Service, ServiceError

_COLOURS = {
    "debug": "2",
    "info": "0",
    "notice": "36",
    "warning": "33",
    "error": "31",
    "critical": "1;31",
}


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "tail",
        help="watch events as they happen, one line each",
        description="Watch events as they happen, one line each; resumes where it was interrupted.",
        epilog="Example: aep-kimi tail --type 'tool.*' --type 'attention.*' --from all",
    )
    parser.add_argument("--json", action="store_true", help="print each event as it came, one JSON line each")
    parser.add_argument(
        "--type",
        action="append",
        metavar="PATTERN",
        help="only this type, or a prefix such as 'tool.*'; repeatable",
    )
    parser.add_argument("--session", action="append", metavar="ID", help="only this session; repeatable")
    parser.add_argument(
        "--severity",
        choices=list(_COLOURS),
        help="only events of this severity and above",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        help="first replay what is held: 'all', or SESSION:SEQ for what came after that position",
    )
    parser.add_argument(
        "--capture", choices=["none", "metadata", "redacted", "full"], help="show at most this much"
    )
    parser.add_argument(
        "--once", action="store_true", help="stop after the replay instead of waiting for more"
    )
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    try:
        service = Service(args.url)
        parameters = {"filter": json.dumps(build_filter(args.type, args.session, args.severity))}
        if args.capture:
            parameters["capture"] = args.capture
        start = parse_start(args.start)
        if args.once:
            parameters["live"] = "0"
            parameters["from"] = start or "all"
            messages = service.stream(parameters)
        else:
            messages = service.follow(parameters, start)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for message in messages:
            if message.event is not None:
                print(message.raw if args.json else line(message.event, colour), flush=True)
            elif message.comment is not None and message.comment.startswith(
                ("interrupted", "replay-exhausted")
            ):
                print(f"aep-kimi tail: {message.comment}", file=sys.stderr, flush=True)
    except (ServiceError, ConnectionError) as error:
        print(f"aep-kimi tail: {error}", file=sys.stderr)
        return 1
    return 0


def build_filter(types: list[str] | None, sessions: list[str] | None, severity: str | None) -> dict[str, Any]:
    """The attr-match filter of the options (AEP-0003 §6)."""
    chosen: dict[str, Any] = {}
    if types:
        chosen["type"] = types
    if sessions:
        chosen["session"] = sessions
    if severity:
        chosen["severity"] = {"gte": severity}
    return chosen


def parse_start(text: str | None) -> str | None:
    """The `from` parameter of `--from`: `all`, `SESSION`, `SESSION:SEQ` or `SESSION:EPOCH:SEQ`."""
    if text is None or text == "all":
        return text
    parts = text.rsplit(":", 2)
    numbers = [part for part in parts[1:] if part.isdecimal()]
    if len(parts) == 3 and len(numbers) == 2:
        session, epoch, seq = parts[0], int(parts[1]), int(parts[2])
    else:
        session, _, last = text.rpartition(":")
        if session and last.isdecimal():
            epoch, seq = 0, int(last)
        else:
            session, epoch, seq = text, 0, 0
    return json.dumps([{"session": session, "epoch": epoch, "seq": seq}])


def line(event: Event, colour: bool) -> str:
    """One event for people: time, severity, session, run, type, subject, the telling part of its data."""
    severity = str(event.get("severity", "info"))
    columns = [
        _clock(str(event.get("time", ""))),
        f"{severity:8}",
        f"{short(str(event.get('session', '-')), 12):12}",
        f"{short(str(event.get('run', '-')), 6):6}",
        clean(str(event.get("type"))),
    ]
    subject = event.get("subject")
    if isinstance(subject, str):
        columns.append(clean(subject))
    told = summary(event)
    if told:
        columns.append(told)
    text = "  ".join(columns)
    code = _COLOURS.get(severity, "0")
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code != "0" else text


def summary(event: Event, limit: int = 120) -> str:
    """The scalars of the data as `name=value`, cut at `limit` characters."""
    data = event.get("data")
    parts: list[str] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), inner)
        elif isinstance(value, list):
            parts.append(f"{prefix}=[{len(value)}]")
        elif not prefix.endswith("_digest"):
            parts.append(f"{prefix}={value if isinstance(value, str) else json.dumps(value)}")

    walk("", data if isinstance(data, dict) else {})
    text = clean(" ".join(parts))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean(text: str) -> str:
    """Without control characters: what an agent did must not steer the terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)


def short(text: str, width: int) -> str:
    """The end of an identifier, where ids differ."""
    text = clean(text)
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def _clock(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return f"{clean(text):12}"
    return moment.astimezone().strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
