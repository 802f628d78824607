"""Runs a registered command as Kimi Code would, against a listener of our own, not the service."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from dataclasses import dataclass

from deploy.setup.blocks import Call

_PAYLOAD = json.dumps({"hook_event_name": "Doctor", "session_id": "aep-setup-doctor", "cwd": "/"}).encode()
WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How a run went: exit code (None: killed at the limit), output, whether the event came through."""

    code: int | None
    stdout: bytes
    stderr: str
    delivered: bool
    took_s: float


class Listener:
    """Takes one POST on a free loopback port and answers `{}`. A context manager."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self._stop = threading.Event()
        self.came = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook"

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(WAIT_S)
                try:
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        received = b""
        while _PAYLOAD not in received:
            part = connection.recv(65536)
            if not part:
                return
            received += part
        self.came.set()
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n"
        )
        connection.sendall(head + b"\r\n{}")


def run(command: str, call: Call, limit_s: float) -> Trial:
    """Run `command`, its address replaced by ours, through the shell with an event on standard input."""
    with Listener() as listener:
        start = time.monotonic()
        try:
            done = subprocess.run(
                command.replace(call.url, listener.url, 1),
                shell=True,
                input=_PAYLOAD,
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return Trial(None, error.stdout or b"", "", listener.came.is_set(), limit_s)
        took = time.monotonic() - start
        delivered = listener.came.wait(WAIT_S)
        return Trial(
            done.returncode, done.stdout, done.stderr.decode("utf-8", "replace").strip(), delivered, took
        )
