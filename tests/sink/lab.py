"""A sink as a process, and what it has written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.app.processes import ROOT

Event = dict[str, Any]


class Sink:
    """A running `aep-kimi sink`."""

    def __init__(self, out: Path, url: str, *options: str, token: str | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AEP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli.main", "sink", "--out", str(out), "--url", url, *options],
            cwd=ROOT,
            env=kept | ({"AEP_TOKEN": token} if token else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def kill(self) -> None:
        """`kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        self.ended()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.ended()

    def ended(self, seconds: float = 60) -> int:
        """The exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())


def contents(out: Path) -> dict[str, list[Event]]:
    """Every file of a folder, older parts first and as one; a line that is no event fails the test."""
    found: dict[str, list[Event]] = {}

    def parts(path: Path) -> tuple[str, int]:
        name, _, number = path.name.removesuffix(".jsonl").partition("~")
        return f"{path.parent.relative_to(out).as_posix()}/{name}", int(
            number
        ) if number.isdecimal() else 1 << 30

    for path in sorted(out.glob("*/*/*.jsonl"), key=parts):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n")
        found.setdefault(parts(path)[0], []).extend(json.loads(line) for line in text[:-1].split("\n"))
    return found


def ids(out: Path) -> list[str]:
    """The ids of all events, as often as they are there."""
    return [event["id"] for events in contents(out).values() for event in events]
