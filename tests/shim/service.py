"""A service of any manners, and the ways to start the shim against it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SHIM = Path(__file__).parents[2] / "deploy" / "shim" / "kimi_hook.py"
# For what must end by itself; long enough for the busiest machine.
PATIENCE = 60.0

Manners = Callable[[socket.socket], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What the service read: the head as text, and the body."""

    head: str
    body: bytes


def ok(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole reply."""
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def say(reply: bytes) -> Manners:
    """Answer with these bytes, then close."""
    return lambda connection: connection.sendall(reply)


def mute(until: threading.Event) -> Manners:
    """Say nothing."""

    def wait(_: socket.socket) -> None:
        until.wait(PATIENCE)

    return wait


def deaf(until: threading.Event) -> Callable[[socket.socket], socket.socket]:
    """Read nothing before that."""

    def wait(connection: socket.socket) -> socket.socket:
        until.wait(PATIENCE)
        return connection

    return wait


def read_request(connection: socket.socket) -> Request | None:
    """One request with Content-Length, or None where the peer left before its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (part := connection.recv(1 << 20)):
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
    parts, missing = [body], int(fields["Content-Length"]) - len(body)
    while missing > 0:
        if not (part := connection.recv(1 << 20)):
            return None
        parts.append(part)
        missing -= len(part)
    return Request(head.decode("latin-1"), b"".join(parts))


class Service:
    """Listens on loopback, reads each request whole, then behaves as told."""

    def __init__(self, manners: Manners | None = None, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.manners = manners or say(ok(b"{}"))
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.wrap: Callable[[socket.socket], socket.socket] = lambda connection: connection
        self.rest: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/hook"

    def __enter__(self) -> Service:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def request(self) -> Request:
        """The next request, once it has come."""
        return self.requests.get(timeout=PATIENCE)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with raw, contextlib.suppress(OSError), self.wrap(raw) as connection:
            request = read_request(connection)
            if request is None:
                return
            self.requests.put(request)
            self.manners(connection)
            connection.shutdown(socket.SHUT_WR)
            self.rest.put(connection.recv(1 << 16))


def command(*arguments: str) -> list[str]:
    """The shim as setup registers it: this interpreter, isolated, without site-packages."""
    return [sys.executable, "-I", "-S", str(SHIM), *arguments]


def shim(
    *arguments: str, event: bytes = b'{"a":1}', environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the shim to its end on one event."""
    variables = {key: value for key, value in os.environ.items() if key != "AEP_TOKEN"}
    return subprocess.run(
        command(*arguments),
        input=event,
        capture_output=True,
        timeout=PATIENCE,
        env=variables | dict(environment or {}),
        check=False,
    )


def assert_silent(done: subprocess.CompletedProcess[bytes]) -> None:
    """The agent sees nothing of it."""
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
