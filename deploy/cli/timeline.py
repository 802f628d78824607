"""`aep-kimi timeline SESSION`: one session as a tree by `cause`, or as edges of a graph."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from deploy.cli.client import Event, Service, ServiceError
from deploy.cli.tail import clean, summary


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "timeline",
        help="show one session as a tree",
        description="Show what is held of one session as a tree: each event under the one that caused it, "
        "runs under their session, times relative to the first event.",
    )
    parser.add_argument(
        "session", metavar="SESSION", help="the session's id, or the end of one that is unambiguous"
    )
    parser.add_argument("--dag", action="store_true", help="print the causes as a Graphviz graph instead")
    parser.add_argument("--json", action="store_true", help="print the events as JSON lines in order instead")
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    try:
        service = Service(args.url)
        events = fetch(service, {"session": args.session})
        if not events:
            names = {str(event["session"]) for event in fetch(service, {}) if "session" in event}
            matches = sorted(name for name in names if name.endswith(args.session))
            if len(matches) > 1:
                print(f"aep-kimi timeline: {args.session!r} fits {len(matches)} sessions", file=sys.stderr)
                return 1
            if matches:
                events = fetch(service, {"session": matches[0]})
    except (ServiceError, ConnectionError) as error:
        print(f"aep-kimi timeline: {error}", file=sys.stderr)
        return 1
    if not events:
        print(f"aep-kimi timeline: nothing is held of session {args.session!r}", file=sys.stderr)
        return 1
    if args.json:
        lines: Iterable[str] = (json.dumps(event, ensure_ascii=False) for event in events)
    else:
        lines = graph(events) if args.dag else tree(events)
    for text in lines:
        print(text)
    return 0


def fetch(service: Service, filter: dict[str, Any]) -> list[Event]:
    """All held events that match, each once, by source and position."""
    parameters = {"filter": json.dumps(filter), "from": "all", "live": "0"}
    found: dict[tuple[Any, Any], Event] = {}
    for message in service.stream(parameters):
        if message.event is not None:
            found[message.event.get("source"), message.event.get("id")] = message.event
    return sorted(found.values(), key=_order)


def tree(events: list[Event]) -> Iterable[str]:
    """The lines of the tree. An event whose cause is unknown hangs under its run, or stands at the left."""
    known = {str(event.get("id")) for event in events}
    children: dict[str | None, list[Event]] = {}
    starts: dict[str, str] = {}
    for event in events:
        identity = str(event.get("id"))
        cause = event.get("cause")
        run = event.get("run")
        parent: str | None = None
        if isinstance(cause, str) and cause in known and cause != identity:
            parent = cause
        elif isinstance(run, str):
            parent = starts.get(run)
        if event.get("type") == "run.started" and isinstance(run, str):
            starts.setdefault(run, identity)
        children.setdefault(parent, []).append(event)
    origin = int(events[0].get("seq", 0))
    printed: set[str] = set()
    stack: list[tuple[Event, str, str]] = []

    def push(group: list[Event], indent: str) -> None:
        for index in reversed(range(len(group))):
            last = index == len(group) - 1
            stack.append(
                (group[index], indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))
            )

    for root in reversed(children.get(None, [])):
        stack.append((root, "", ""))
    while stack:
        event, lead, indent = stack.pop()
        identity = str(event.get("id"))
        if identity in printed:
            continue
        printed.add(identity)
        yield _label(event, origin, lead)
        push(children.get(identity, []), indent)
    # Causes that form a ring cannot be reached from the left; they are still part of the story.
    for event in events:
        if str(event.get("id")) not in printed:
            yield _label(event, origin, "? ")


def graph(events: list[Event]) -> Iterable[str]:
    """The same as a Graphviz digraph."""
    yield "digraph session {"
    yield '  rankdir=LR; node [shape=box, fontname="monospace"];'
    for event in events:
        name = json.dumps(str(event.get("id")))
        words = [str(event.get("type")), str(event.get("subject") or "")]
        label = json.dumps(clean(" ".join(word for word in words if word)), ensure_ascii=False)
        yield f"  {name} [label={label}];"
        if isinstance(event.get("cause"), str):
            yield f"  {json.dumps(event['cause'])} -> {name};"
    yield "}"


def _label(event: Event, origin: int, lead: str) -> str:
    offset = (int(event.get("seq", origin)) - origin) / 1000
    words = [f"{offset:9.3f}s ", f"{lead}{clean(str(event.get('type')))}"]
    subject = event.get("subject")
    if isinstance(subject, str):
        words.append(clean(subject))
    told = summary(event, 80)
    if told:
        words.append(told)
    return " ".join(words)


def _order(event: Event) -> tuple[str, int, int]:
    return str(event.get("source")), int(event.get("epoch", 0)), int(event.get("seq", 0))
