"""A stub of our service: records every body posted to it and answers what the test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Posted:
    """One post: when it arrived (epoch seconds), its headers in lower case, its lines of JSON.

    A hook is one line, a batch of frames is many; `payload` is the first."""

    at: float
    path: str
    headers: dict[str, str]
    lines: tuple[dict[str, Any], ...]

    @property
    def payload(self) -> dict[str, Any]:
        return self.lines[0] if self.lines else {}

    @property
    def event(self) -> str:
        return str(self.payload.get("hook_event_name", ""))


Answer = Callable[[dict[str, Any]], dict[str, Any]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    owner: Recorder


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        lines = tuple(json.loads(line) for line in raw.split(b"\n") if line.strip())
        self._answer(200, self.server.owner.take(self.path, headers, lines))

    def do_GET(self) -> None:
        healthy = self.path in ("/healthz", "/readyz")
        self._answer(200 if healthy else 404, {"ok": healthy, "relay": False})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True


class Recorder:
    """The stub on a free loopback port. Use as a context manager; `answer` may be replaced at any time."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _payload: {}
        self._posted: list[Posted] = []
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def url(self) -> str:
        """The base URL, as `AEP_URL` has it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def hook_url(self) -> str:
        return f"{self.url}/hook"

    @property
    def posted(self) -> list[Posted]:
        with self._changed:
            return list(self._posted)

    @property
    def events(self) -> list[str]:
        """The names of the recorded events, in order of arrival."""
        return [p.event for p in self.posted]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The payloads of one event, oldest first."""
        return [p.payload for p in self.posted if p.event == event]

    def take(self, path: str, headers: dict[str, str], lines: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        posted = Posted(time.time(), path, headers, lines)
        with self._changed:
            self._posted.append(posted)
            self._changed.notify_all()
        return self.answer(posted.payload)

    def wait(self, *events: str, timeout_s: float = 30) -> bool:
        """Wait until each named event arrived at least as often as it is named."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._count(e) >= events.count(e) for e in set(events)), timeout_s
            )

    def _count(self, event: str) -> int:
        return sum(p.event == event for p in self._posted)

    def clear(self) -> None:
        with self._changed:
            self._posted.clear()
