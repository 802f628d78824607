"""The load client, `python -m tests.bench.load JSON`: one thread, raw sockets, closed loops.

Takes `ports`, `token`, `connections`, `sessions`, `name` (of the sessions), and `seconds` (`warm` before) or
`total` (requests). Prints `count` and `seconds` of the measured time, `all` with the warm-up, `p50` and
`p99` in seconds, and `unstored`: answers that are not 200 with the event stored.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.bench.events import conversation


@dataclass(slots=True, eq=False)
class Line:
    """One connection and what it asks next."""

    socket: socket.socket
    requests: Iterator[bytes]
    began: float = 0.0
    data: bytes = field(default=b"")


def requests(port: int, token: str, name: str, sessions: range) -> Iterator[bytes]:
    """The sessions' conversations over and over, one event of each session in turn."""
    templates = []
    for event in conversation():
        body = json.dumps(event, separators=(",", ":")).replace("%", "%%")
        body = body.replace("SESSION", f"{name}-%06d").replace("CALL", "call_%08d")
        length = len(body % ((0,) * body.count("%0")))
        head = (
            f"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
        )
        templates.append(((head + body).encode(), "CALL" in str(event)))
    lap = 0
    while True:
        for step, (template, calls) in enumerate(templates):
            for session in sessions:
                yield template % ((session, lap * 8 + (step + 1) // 2) if calls else (session,))
        lap += 1


def answered(data: bytes) -> int:
    """0 while the answer is incomplete, 1 when it is good, 2 when it is not."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    at = data.find(b"content-length: ", 0, end)
    if len(data) < end + 4 + int(data[at + 16 : data.find(b"\r", at)]):
        return 0
    stored = data.find(b"aep-stored: ", 0, end)
    return 1 if data.startswith(b"HTTP/1.1 200") and (stored < 0 or data[stored + 12] == 0x79) else 2


def drive(wanted: dict[str, Any]) -> dict[str, Any]:
    """Do it."""
    connections: int = wanted["connections"]
    sessions: int = wanted["sessions"]
    total: int = wanted.get("total", sys.maxsize)
    ports: list[int] = wanted["ports"]
    selector = selectors.DefaultSelector()
    lines = []
    for number in range(min(connections, sessions)):
        port = ports[number % len(ports)]
        mine = range(number, sessions, connections)
        line = Line(
            socket.create_connection(("127.0.0.1", port)),
            requests(port, wanted["token"], wanted.get("name", "s"), mine),
        )
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(line.socket, selectors.EVENT_READ, line)
        lines.append(line)
    clock = time.perf_counter
    took = array("d")
    unstored = sent = every = 0
    began = clock()
    measured = began + wanted.get("warm", 0.0)
    end = measured + wanted.get("seconds", 1e9)
    for line in lines:
        sent += 1
        line.began = clock()
        line.socket.sendall(next(line.requests))
    now = began
    between: Callable[[], object] | None = wanted.get("between")
    while every < sent:
        if between:
            between()
        for key, _ in selector.select(0.001 if between else None):
            line = key.data
            data = line.socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed a connection")
            line.data = data = line.data + data if line.data else data
            verdict = answered(data)
            if not verdict:
                continue
            now = clock()
            every += 1
            if line.began >= measured:
                took.append(now - line.began)
                unstored += verdict == 2
            line.data = b""
            if now < end and sent < total:
                sent += 1
                line.began = clock()
                line.socket.send(next(line.requests))
    ordered = sorted(took)
    return {
        "count": len(took),
        "seconds": now - measured,
        "all": every,
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[len(ordered) * 99 // 100],
        "unstored": unstored,
    }


if __name__ == "__main__":
    print(json.dumps(drive(json.loads(sys.argv[1]))))
