"""`aep-kimi web` as a process: the link under test between a `kimi web` and a service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from .kimi import Kimi, kill_group
from .service import CLI, Service
from .waiting import until


class Link:
    """One link of a home's servers to a service. Use as a context manager; `kill` is a crash."""

    def __init__(self, kimi: Kimi, service: Service, more: Sequence[str] = ()) -> None:
        self.kimi = kimi
        self.service = service
        self._more = list(more)
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Link:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def output(self) -> str:
        path = self.kimi.base / "link.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        assert self._process is None
        keep = {k: v for k, v in os.environ.items() if not k.startswith("AEP_")}
        token = {"AEP_TOKEN": self.service.token} if self.service.token else {}
        self._log = (self.kimi.base / "link.log").open("ab")
        where = ["--home", str(self.kimi.code_home), "--url", self.service.url, "--port", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLI, "web", *where, *self._more],
            env={**keep, **token},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def watching(self, times: int = 1) -> None:
        """Wait until it has said so often that it watches a server."""
        until(lambda: self.output.count(": watching") >= times, f"not watching: {self.output}", 30)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.stop()

    def stop(self) -> int | None:
        """SIGTERM, then what it takes; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        kill_group(process, grace_s=8)
        if self._log is not None:
            self._log.close()
        return process.returncode
