"""A small client of the service for the command line: requests, and a stream that resumes by position.

Only the standard library, so that a command starts at once. Everything blocks.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from deploy.cli import secret

DEFAULT_URL = "http://127.0.0.1:8398"
_FROM_BUDGET = 6_000
_REMEMBERED = 2_000
_SILENCE_SECONDS = 60.0

Event = dict[str, Any]


class ServiceError(Exception):
    """The service cannot be reached, or refused; the message is one sentence for people."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream: an event, or a comment of the service."""

    event: Event | None = None
    raw: str = ""
    comment: str | None = None


@dataclass(slots=True)
class Positions:
    """The newest known position of each session, in the order in which they last moved."""

    known: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)

    def note(self, event: Event) -> None:
        session, seq = event.get("session"), event.get("seq")
        if isinstance(session, str) and isinstance(seq, int):
            position = (int(event.get("epoch", 0)), seq)
            self.known[session] = max(position, self.known.get(session, position))
            self.known.move_to_end(session)
            if len(self.known) > _REMEMBERED:
                self.known.popitem(last=False)

    def parameter(self) -> str | None:
        """The `from` parameter: as many of the newest positions as a URL can carry."""
        chosen: list[dict[str, Any]] = []
        size = 2
        for session, (epoch, seq) in reversed(self.known.items()):
            entry = {"session": session, "epoch": epoch, "seq": seq}
            size += len(quote(json.dumps(entry, separators=(",", ":")))) + 3
            if chosen and size > _FROM_BUDGET:
                break
            chosen.append(entry)
        return json.dumps(chosen, separators=(",", ":")) if chosen else None


def address(url: str | None, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """`url`, else `AEP_URL`, else the default, without a slash at its end. Raises ServiceError."""
    found = (url or os.environ.get("AEP_URL", "").strip() or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(found)
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[\x21-\x7e]+", found):
        raise ServiceError(f"not a URL of {' or '.join(schemes)}: {found!r} (set AEP_URL)")
    return found


def bearer(token: str | None = None) -> str | None:
    """`token`, else `AEP_TOKEN`; None without either. Raises ServiceError, which does not tell it."""
    found = (token or os.environ.get("AEP_TOKEN", "")).strip()
    if found and not re.fullmatch(r"[\x21-\x7e]+", found):
        raise ServiceError("AEP_TOKEN: expected printable ASCII characters without blanks")
    return found or None


class Service:
    """Where the service is and what it wants to hear."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = address(url)
        self._parts = urlsplit(self.url)
        self.token = bearer(token)
        if self.token is None and self._parts.hostname in {"127.0.0.1", "localhost", "::1"}:
            self.token = secret.found()

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, bytes]:
        """Status and body of a GET."""
        connection = _connect(self._parts, timeout)
        try:
            connection.request("GET", self._parts.path + path, headers=self._headers())
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(self._unreachable(error)) from None
        finally:
            connection.close()

    def stream(self, parameters: dict[str, str]) -> Iterator[Message]:
        """The messages of one connection to `/stream`, until it ends."""
        connection = _connect(self._parts, _SILENCE_SECONDS)
        try:
            path = f"{self._parts.path}/stream?{urlencode(parameters)}"
            connection.request("GET", path, headers=self._headers(Accept="text/event-stream"))
            response = connection.getresponse()
            if response.status >= 500:
                raise ConnectionError(_refusal(response.status, response.read(4_096)))
            if response.status != 200:
                raise ServiceError(_refusal(response.status, response.read(4_096)))
            yield from _messages(response)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(self._unreachable(error)) from None
        finally:
            connection.close()

    def follow(self, parameters: dict[str, str], start: str | None) -> Iterator[Message]:
        """Like `stream`, but across connections: resumes after what was seen, and never repeats an event.

        `start` is the first `from` parameter. A comment message tells of every interruption.
        """
        positions = Positions()
        seen: OrderedDict[tuple[Any, Any], None] = OrderedDict()
        pause = 0.25
        resume = start
        while True:
            asked = parameters | ({"from": resume} if resume else {})
            try:
                for message in self.stream(asked):
                    pause = 0.25
                    event = message.event
                    if event is not None:
                        key = (event.get("source"), event.get("id"))
                        positions.note(event)
                        if key in seen:
                            continue
                        seen[key] = None
                        if len(seen) > 20_000:
                            seen.popitem(last=False)
                    yield message
                reason = "the service closed the stream"
            except ConnectionError as error:
                reason = str(error)
            yield Message(comment=f"interrupted: {reason}")
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
            resume = positions.parameter() or start

    def _headers(self, **more: str) -> dict[str, str]:
        headers = {"User-Agent": "aep-kimi", **more}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return headers

    def _unreachable(self, error: Exception) -> str:
        return (
            f"no service at {self.url} ({getattr(error, 'strerror', None) or error or type(error).__name__})"
        )


def _connect(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    host = parts.hostname or "127.0.0.1"
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            host, parts.port or 443, timeout=timeout, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout)


def _refusal(status: int, body: bytes) -> str:
    try:
        answer = json.loads(body)
        detail = answer.get("detail") or answer.get("error")
    except (ValueError, AttributeError):
        detail = None
    return f"the service refused: {detail or f'HTTP {status}'}"


def _messages(response: http.client.HTTPResponse) -> Iterator[Message]:
    data: list[str] = []
    while True:
        line = response.readline()
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text == "":
            if data:
                raw, data = "\n".join(data), []
                try:
                    event = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield Message(event=event, raw=raw)
        elif text.startswith(":"):
            yield Message(comment=text[1:].strip())
        elif text.startswith("data:"):
            data.append(text[5:].removeprefix(" "))
