"""Sending one command over `/socket` and waiting for what becomes of it (AEP-0004). Blocking."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from deploy.cli.client import Event, Service, ServiceError

ACCEPTED, FAILED, NACKED, TIMED_OUT = 0, 1, 3, 4
"""Exit codes."""
WINDOW_SECONDS = 10.0
_AGAIN_SECONDS = 3.0
_OPEN_SECONDS = 5.0
_AGENT = "aep-kimi"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command: an exit code and a sentence."""

    code: int
    text: str
    command_id: str


@dataclass(slots=True)
class Wire:
    """An open connection, subscribed to one session or to none."""

    connection: Any
    inbox: list[Event] = field(default_factory=list)

    def send(self, frame: Event) -> None:
        self.connection.send(json.dumps(frame))

    def until(self, wanted: Callable[[Event], bool], seconds: float) -> Event | None:
        """The first wanted frame, of those that came before too; None after `seconds`."""
        for known in self.inbox:
            if wanted(known):
                return known
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                frame: Event = json.loads(self.connection.recv(timeout=left))
            except TimeoutError:
                return None
            except Exception as error:
                raise ServiceError(f"the connection broke: {error}") from None
            if frame.get("type") == "ping":
                self.send({"type": "pong", "t": frame.get("t")})
                continue
            self.inbox.append(frame)
            if wanted(frame):
                return frame
        return None

    def ask(self, frame: Event, answer: str) -> Event:
        """A request and its answer."""
        self.send(frame)
        found = self.until(
            lambda got: got.get("type") in (answer, "error") and got.get("id") == frame.get("id"),
            _OPEN_SECONDS,
        )
        if found is None or found["type"] == "error":
            raise ServiceError(
                f"the service did not answer '{frame['type']}'"
                if found is None
                else f"the service refused '{frame['type']}': {found.get('detail') or found.get('code')}"
            )
        return found


@contextlib.contextmanager
def connect(service: Service) -> Iterator[Wire]:
    """An open `/socket` after the hellos. Raises ServiceError."""
    from websockets.sync.client import connect as open_socket

    parts = urlsplit(service.url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    address = urlunsplit((scheme, parts.netloc, parts.path + "/socket", "", ""))
    headers = {"Authorization": f"Bearer {service.token}"} if service.token else {}

    def opening() -> Any:
        # Older versions connect when they are called, newer ones when they are entered.
        return open_socket(
            address,
            additional_headers=headers,
            open_timeout=_OPEN_SECONDS,
            close_timeout=1,
            max_size=None,
            proxy=None,
        )

    with contextlib.ExitStack() as stack:
        yield _greeted(service, stack, opening)


def _greeted(service: Service, stack: contextlib.ExitStack, opening: Callable[[], Any]) -> Wire:
    from websockets.exceptions import InvalidStatus, WebSocketException

    try:
        connection = stack.enter_context(opening())
    except InvalidStatus as error:
        status = error.response.status_code
        hint = "set AEP_TOKEN" if status in (401, 403) else "is that the right AEP_URL?"
        raise ServiceError(
            f"the service at {service.url} refused the connection ({status}): {hint}"
        ) from None
    except (OSError, WebSocketException) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise ServiceError(f"no service at {service.url} ({reason})") from None
    wire = Wire(connection)
    identity = {"agent": _AGENT, "instance": f"{socket.gethostname()}/{os.getpid()}"}
    wire.send({"type": "hello", "versions": ["0.1"], "role": "consumer", "identity": identity})
    hello = wire.until(lambda frame: frame.get("type") in ("hello", "error"), _OPEN_SECONDS)
    if hello is None or hello["type"] == "error":
        raise ServiceError(f"the service did not say hello: {(hello or {}).get('detail', 'no answer')}")
    return wire


def command(kind: str, session: str, data: Event, *, subject: str | None = None) -> Event:
    """A command's envelope (AEP-0004 §2): without `seq`, its id is what retries repeat."""
    made: Event = {
        "aep": "0.1",
        "id": _ulid(),
        "type": kind,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "source": f"aep://{socket.gethostname() or 'localhost'}/agent/{_AGENT}",
        "agent": _AGENT,
        "session": session,
        "capture": "redacted",
        "data": data,
    }
    if subject is not None:
        made |= {"subject": subject, "cause": subject}
    return made


def deliver(wire: Wire, made: Event, *, window: float = WINDOW_SECONDS) -> Answer:
    """Send a command, again while nothing is heard, and wait for its one acknowledgement."""
    wire.ask({"type": "subscribe", "id": "acks", "filter": {"session": made["session"]}}, "subscribed")
    identity = str(made["id"])
    end = time.monotonic() + window
    while (left := end - time.monotonic()) > 0:
        wire.send(made)
        ack = wire.until(
            lambda frame: (
                frame.get("cause") == identity
                and frame.get("type") in ("control.accepted", "control.rejected", "error")
            ),
            min(left, _AGAIN_SECONDS),
        )
        if ack is None:
            continue
        if ack["type"] == "control.accepted":
            return Answer(ACCEPTED, "accepted", identity)
        data = ack if ack["type"] == "error" else ack.get("data") or {}
        reason = data.get("reason") or data.get("code") or "refused"
        detail = data.get("detail") or data.get("code")
        return Answer(NACKED, f"{reason}: {detail}" if detail and detail != reason else reason, identity)
    return Answer(TIMED_OUT, f"no answer within {window:.0f} s", identity)


def live_sessions(wire: Wire) -> list[str]:
    """The sessions that can be commanded now, from the roster."""
    roster = wire.ask({"type": "roster", "id": "roster"}, "roster")
    return [str(entry.get("session")) for entry in roster.get("entries", [])]


def pick(names: list[str], wanted: str, what: str) -> str:
    """The one name that is or ends with `wanted`; `-` is the only one. Raises ServiceError."""
    if wanted in names:
        return wanted
    fitting = sorted({name for name in names if wanted == "-" or name.endswith(wanted)})
    if len(fitting) == 1:
        return fitting[0]
    if wanted == "-":
        raise ServiceError(
            f"{len(fitting)} {what}s are there; name one" if fitting else f"there is no {what}"
        )
    raise ServiceError(
        f"{wanted!r} fits {'no' if not fitting else len(fitting)} {what}{'s' if fitting else ''}"
    )


def say(name: str, answer: Answer) -> None:
    """Print what became of a command of `aep-kimi NAME`."""
    if answer.code == ACCEPTED:
        print(answer.text, flush=True)
    else:
        print(f"aep-kimi {name}: {answer.text}", file=sys.stderr)


def _ulid() -> str:
    from handlers.aep.ulid import ulid

    return ulid(time.time_ns() // 1_000_000, os.urandom(10))
