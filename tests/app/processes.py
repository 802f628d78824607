"""Replicas as processes of their own, started by the command that users type."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Command:
    """A running `aep-kimi` of its own environment; `lines` are what it has said so far."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AEP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli.main", *arguments],
            cwd=ROOT,
            env=kept | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._begun()
        # The pipe must be read, or a talkative process would stop at it.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self, seconds: float = 15) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.ended(seconds)

    def kill(self) -> None:
        """`kill -9`, for a frozen one too."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.ended(15)

    def ended(self, seconds: float = 60) -> int:
        """The exit code, when it has ended by itself."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _begun(self) -> None:
        """Wait until it can be used."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())


class Process(Command):
    """A running `aep-kimi serve`; `url` is where it listens."""

    def __init__(self, environment: dict[str, str], *, port: int = 0) -> None:
        self.url = ""
        super().__init__(environment, "serve", "--port", str(port))

    def _begun(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if " ready on " in line:
                self.url = line.partition(" ready on ")[2].split()[0]
                return
        self.process.wait(15)
        self.process.stdout.close()
        raise RuntimeError("the service did not start: " + " / ".join(self.lines))


@contextlib.contextmanager
def processes(count: int, environment: dict[str, str]) -> Iterator[list[Process]]:
    """`count` replicas, killed at the end."""
    started: list[Process] = []
    try:
        for _ in range(count):
            started.append(Process(environment))
        yield started
    finally:
        for process in started:
            if process.process.poll() is None:
                process.kill()
