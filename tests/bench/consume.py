"""Many consumers of live events in one thread: `python -m tests.bench.consume JSON`.

Takes `port`, `token`, `server` (process id), `consumers`, `socket` (the mark by which events are counted that
come over WebSockets, empty for server-sent events), `paced` (events posted one at a time, for latency) and
`burst` (events posted by eight connections at once, for throughput). Prints `p50` and `p99` in seconds from
the start of a post until each consumer has the event, `rate`, events delivered per second to all of them
together, and `cpu`, processor seconds of the server for each of these, the posting included.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from typing import Any

from tests.bench.events import payload
from tests.bench.lab import processor
from tests.bench.load import drive

_SETTLE_SECONDS = 0.3
_UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
_GREETING = (
    {
        "type": "hello",
        "versions": ["0.1"],
        "role": "consumer",
        "identity": {"agent": "bench", "instance": "bench"},
    },
    {"type": "subscribe", "id": "all"},
)


class Consumers:
    """Open connections, and how many events have come on each."""

    def __init__(self, port: int, token: str, count: int, duplex: str = "") -> None:
        self._selector = selectors.DefaultSelector()
        self.counts = [0] * count
        self._tails = [b""] * count
        self._mark = duplex.encode() or b"\ndata:"
        path, more = ("/socket", _UPGRADE) if duplex else ("/stream", "")
        request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
        )
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request.encode())
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 101" if duplex else b"HTTP/1.1 200"):
                raise ConnectionError(answer[:200].decode(errors="replace"))
            if duplex:
                connection.sendall(b"".join(masked(json.dumps(frame).encode()) for frame in _GREETING))
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, number)

    def poll(self, seconds: float) -> list[int]:
        """Read what has come; which consumers have got an event."""
        got = []
        for key, _ in self._selector.select(seconds):
            number: int = key.data
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = self._tails[number] + connection.recv(1 << 20)
            found = data.count(self._mark)
            self._tails[number] = data[-len(self._mark) + 1 :]
            if found:
                self.counts[number] += found
                got.append(number)
        return got

    def settle(self) -> float:
        """Read until nothing has come for a while; when the last thing came."""
        last = time.perf_counter()
        while time.perf_counter() - last < _SETTLE_SECONDS:
            if self.poll(0.05):
                last = time.perf_counter()
        return last


def masked(payload: bytes) -> bytes:
    """A text frame of a client (RFC 6455 §5.2), masked with zeros."""
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else bytes([0x81, 0xFE]) + size.to_bytes(2, "big")
    return head + bytes(4) + payload


def paced(consumers: Consumers, wanted: dict[str, Any]) -> list[float]:
    """Latencies of all consumers over all events."""
    body = payload(700, "fan")
    request = (
        f"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:{wanted['port']}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {wanted['token']}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    latencies: list[float] = []
    with socket.create_connection(("127.0.0.1", wanted["port"])) as poster:
        poster.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poster.settimeout(0)
        for _ in range(wanted["paced"]):
            missing = len(consumers.counts)
            began = time.perf_counter()
            poster.send(request)
            while missing:
                got = consumers.poll(5)
                if not got:
                    raise TimeoutError("an event did not reach every consumer")
                now = time.perf_counter() - began
                latencies += [now] * len(got)
                missing -= len(got)
            time.sleep(0.005)
            with contextlib.suppress(BlockingIOError):
                poster.recv(65536)
    return latencies


def run(wanted: dict[str, Any]) -> dict[str, float]:
    """Do it."""
    consumers = Consumers(wanted["port"], wanted["token"], wanted["consumers"], wanted["socket"])
    consumers.settle()
    latencies = sorted(paced(consumers, wanted))
    consumers.settle()
    before, used = sum(consumers.counts), processor(wanted["server"])
    began = time.perf_counter()
    drive(
        {
            "ports": [wanted["port"]],
            "token": wanted["token"],
            "connections": 8,
            "sessions": 8,
            "name": "f",
            "total": wanted["burst"],
            "between": lambda: consumers.poll(0),
        }
    )
    ended = consumers.settle()
    delivered = sum(consumers.counts) - before
    return {
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[len(latencies) * 99 // 100],
        "rate": delivered / (ended - began),
        "cpu": (processor(wanted["server"]) - used) / delivered,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
