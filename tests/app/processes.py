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


class Process:
    """A running `aep-kimi serve`; `url` is where it listens."""

    def __init__(self, environment: dict[str, str], *, port: int = 0) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AEP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli.main", "serve", "--port", str(port)],
            cwd=ROOT,
            env=kept | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.url = self._until_ready()
        # The pipe must be read, or a talkative process would stop at it.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def terminate(self, seconds: float = 15) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self._ended(seconds)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self._ended(15)

    def _ended(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _until_ready(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if " ready on " in line:
                return line.partition(" ready on ")[2].split()[0]
        self.process.wait(15)
        self.process.stdout.close()
        raise RuntimeError("the service did not start: " + " / ".join(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())


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
