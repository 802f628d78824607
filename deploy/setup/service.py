"""What `doctor` asks the service: on each address of its name, with the token, without changing anything.

Sources: `GET /healthz`; AEP-0003 §3.3 (`GET {base}/stream`, Server-Sent Events), §5 (`from=all`, `live=0`).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

CONNECT_S = 3.0
READ_S = 10.0
LARGEST_ANSWER = 64 << 20
_FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one address. `status` 0 where there was none, and `error` says why."""

    address: str
    family: str
    status: int = 0
    body: bytes = b""
    error: str = ""
    took_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The last event of a type: when, as the service wrote it."""

    type: str
    time: str
    emitter: str


def addresses(base: str) -> list[tuple[str, str]]:
    """`(IP address, family)` of the host of a base URL, in the resolver's order; OSError if it has none."""
    parts = urlsplit(base)
    found = socket.getaddrinfo(parts.hostname, _port(base), type=socket.SOCK_STREAM)
    pairs = ((str(sockaddr[0]), _FAMILIES.get(family, "")) for family, _, _, _, sockaddr in found)
    return [pair for pair in dict.fromkeys(pairs) if pair[1]]


def get(base: str, address: str, family: str, path: str, token: str = "", accept: str = "*/*") -> Answer:
    """One GET on one address."""
    start = time.monotonic()
    try:
        status, body = _get(base, address, path, token, accept)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Answer(address, family, error=str(reason).lower())
    return Answer(address, family, status, body, took_ms=(time.monotonic() - start) * 1000)


def _get(base: str, address: str, path: str, token: str, accept: str) -> tuple[int, bytes]:
    parts = urlsplit(base)
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, _port(base))
    plain = socket.create_connection((address, _port(base)), CONNECT_S)
    try:
        plain.settimeout(READ_S)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        connection.sock = secure.wrap_socket(plain, server_hostname=host) if secure else plain
        headers = {"Host": parts.netloc, "Accept": accept, "Connection": "close", "User-Agent": "aep-setup"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(LARGEST_ANSWER)
    finally:
        connection.close()
        plain.close()


def _port(base: str) -> int:
    parts = urlsplit(base)
    return parts.port or (443 if parts.scheme == "https" else 80)


def healthy(answer: Answer) -> bool:
    """Whether it is the health answer of a service of ours."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        return False
    return answer.status == 200 and isinstance(body, dict) and body.get("ok") is True


def last_events(stream: bytes, agent: str = "kimi-code") -> list[Seen]:
    """The last event of each type and emitter in a replay, by type; what is no event is passed over."""
    newest: dict[tuple[str, str], Seen] = {}
    for line in stream.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        event = _event(line[5:])
        emitter = _emitter(str(event.get("source", "")), agent)
        if emitter:
            seen = Seen(str(event.get("type", "")), str(event.get("time", "")), emitter)
            key = (seen.type, emitter)
            newest[key] = max(newest.get(key, seen), seen, key=lambda s: s.time)
    return sorted(newest.values(), key=lambda s: (s.type, s.emitter))


def _event(text: bytes) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _emitter(source: str, agent: str) -> str:
    """The emitter of `aep://{emitter}/agent/{agent}/session/{session}`, empty for other sources."""
    scheme, _, rest = source.partition("://")
    parts = rest.split("/")
    if scheme != "aep" or parts[1:3] != ["agent", agent]:
        return ""
    return unquote(parts[0])
