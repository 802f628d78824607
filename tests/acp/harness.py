"""A tee under test, and services that behave in every way a service can."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

AGENT = [sys.executable, "-I", "-S", str(Path(__file__).with_name("agent.py"))]
TEE = [sys.executable, "-m", "deploy.cli.main", "acp"]
NOWHERE = "http://127.0.0.1:9"


def start(*agent: str, url: str = NOWHERE, **more: Any) -> subprocess.Popen[bytes]:
    """The tee with a test agent."""
    return _piped([*TEE, "--url", url, "--", *AGENT, *agent], more)


def direct(*agent: str, **more: Any) -> subprocess.Popen[bytes]:
    """The same agent without a tee."""
    return _piped([*AGENT, *agent], more)


def _piped(command: list[str], more: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        preexec_fn=_unprotected,
        **more,
    )


def _unprotected() -> None:
    # Tests that run under nohup, or behind a shell's &, would hand down that some signals are ignored.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone afterwards."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class Service:
    """A service of `POST /frames/acp` that remembers what it was told. `statuses` are given in turn, the
    last one for good; `freeze` answers nothing."""

    def __init__(self, *statuses: int, freeze: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._statuses = list(statuses) or [200]
        self._thaw = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if freeze:
                    service._thaw.wait(30)
                    self.close_connection = True
                    return
                status = service._statuses.pop(0) if len(service._statuses) > 1 else service._statuses[0]
                if status < 300:
                    service.bodies.append(body)
                    service.headers.append({k.lower(): v for k, v in self.headers.items()})
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thaw.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All delivered lines, in order."""
        return [json.loads(line) for body in self.bodies for line in body.split(b"\n") if line]

    def frames(self, direction: str) -> list[Any]:
        return [line["frame"] for line in self.lines if line["dir"] == direction]


@contextmanager
def mute() -> Iterator[str]:
    """A port that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(word) for word in listed.read().split()]
    except FileNotFoundError:
        return []


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
