"""`aep-kimi pending`: what waits for a human, with age and time left."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deploy.cli.client import Event, Service, ServiceError
from deploy.cli.tail import clean, short
from deploy.cli.timeline import fetch

_ENDS = ("attention.resolved", "attention.timeout")


@dataclass(slots=True)
class Request:
    """One `attention.requested` and how far it has come. Times are Unix seconds."""

    event: Event
    answered: bool = False
    closed: bool = False

    @property
    def id(self) -> str:
        return str(self.event["id"])

    @property
    def session(self) -> str:
        return str(self.event.get("session", ""))

    @property
    def data(self) -> Event:
        data = self.event.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def answerable(self) -> bool:
        """Whether it can be answered from here."""
        via = self.data.get("respond_via")
        return not isinstance(via, list) or "control" in via

    @property
    def asked_at(self) -> float:
        return _seconds(self.event.get("time")) or 0.0

    @property
    def expires_at(self) -> float | None:
        return _seconds(self.data.get("expires_at"))


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "pending",
        help="list what waits for an answer",
        description="List the requests that wait for a human, the oldest first: the end of the request's id, "
        "its age, the time left, the session, and what is asked. 'aep-kimi respond' takes the id.",
    )
    parser.add_argument("--session", metavar="ID", help="only this session")
    parser.add_argument("--json", action="store_true", help="print the attention.requested events instead")
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    try:
        requests = waiting(known(Service(args.url), args.session), time.time())
    except (ServiceError, ConnectionError) as error:
        print(f"aep-kimi pending: {error}", file=sys.stderr)
        return 1
    for request in requests:
        print(json.dumps(request.event, ensure_ascii=False) if args.json else line(request, time.time()))
    if not requests and not args.json:
        print("nothing waits")
    return 0


def known(service: Service, session: str | None = None) -> list[Request]:
    """Every request that is held, the oldest first. Raises ServiceError, ConnectionError."""
    wanted: dict[str, Any] = {"type": "attention.*"}
    if session:
        wanted["session"] = session
    requests: dict[str, Request] = {}
    events = fetch(service, wanted)
    for event in events:
        if event.get("type") == "attention.requested":
            requests[str(event.get("id"))] = Request(event)
    for event in events:
        request = requests.get(str(event.get("subject")))
        if request is None:
            continue
        if event.get("type") == "attention.answered":
            request.answered = True
        elif event.get("type") in _ENDS:
            request.closed = True
    return sorted(requests.values(), key=lambda request: request.asked_at)


def waiting(requests: list[Request], now: float) -> list[Request]:
    """Those that still wait at Unix time `now`; what should have been closed long ago does not."""
    return [
        request
        for request in requests
        if not request.closed and (request.expires_at is None or request.expires_at > now - 60)
    ]


def line(request: Request, now: float) -> str:
    """One request as one line."""
    left = request.expires_at
    remains = "-" if left is None else span(left - now) if left > now else "over"
    hint = "" if request.answerable else "  (answer it where the agent runs)"
    prompt = clean(str(request.data.get("prompt", "")))
    prompt = prompt if len(prompt) <= 100 else prompt[:99] + "…"
    return "  ".join(
        (
            short(request.id, 8),
            f"{span(now - request.asked_at):>6}",
            f"{remains:>6}",
            short(request.session, 16),
            prompt + hint,
        )
    )


def span(seconds: float) -> str:
    """A duration in the largest unit that says enough."""
    seconds = max(0, int(seconds))
    if seconds < 100:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 6_000 else f"{seconds // 3_600} h"


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None
