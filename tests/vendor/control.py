"""Answers and commands from elsewhere: the official SDK's control client on a service's `/socket`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aep_sdk.control import ControlClient

from .service import Event, Service
from .waiting import until

TOKEN = "a-token-of-the-vendor-suite"
RESPOND = "control.attention.respond"


@contextlib.contextmanager
def client(service: Service) -> Iterator[ControlClient]:
    made = ControlClient(service.url, agent="tests", host="tests", token=service.token)
    made.connect()
    try:
        yield made
    finally:
        made.close()


def respond(service: Service, request: Event, answer: dict[str, str]) -> Event:
    with client(service) as control:
        ack: Event = control.send(
            RESPOND,
            request["session"],
            subject=request["id"],
            cause=request["id"],
            data={"answer": answer},
            capture="redacted",
        )
        return ack


def asked_of(service: Service, session: str) -> Event:
    """The open request of one session."""

    def look() -> Event | None:
        events = service.events(session)
        done = {e.get("subject") for e in events if e["type"] in ("attention.resolved", "attention.timeout")}
        open_ = [e for e in events if e["type"] == "attention.requested" and e["id"] not in done]
        return open_[-1] if open_ else None

    return until(look, "an open request", 30, 0.1)
