"""The interactive Kimi Code in a terminal of tmux: type, press keys, read the screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from .kimi import Kimi
from .waiting import NotReady, until


class Tui:
    """One `kimi` in one tmux server of its own. Use as a context manager."""

    def __init__(self, kimi: Kimi, arguments: Sequence[str] = (), *, columns: int = 120, rows: int = 45):
        tmux = shutil.which("tmux")
        if tmux is None:
            pytest.skip("tmux is not installed")
        self.kimi = kimi
        # a unix socket path has little room, and pytest's folders are long
        self._sockets = Path(tempfile.mkdtemp(prefix="tui-"))
        self._tmux = [tmux, "-S", str(self._sockets / "s"), "-f", "/dev/null"]
        self._arguments = [*kimi.argv, *arguments]
        self._size = ["-x", str(columns), "-y", str(rows)]

    def __enter__(self) -> Tui:
        env = {**self.kimi.env(), "TERM": "xterm-256color", "KIMI_CODE_TUI_FULL_SCREEN": "0"}
        assignments = [f"{name}={value}" for name, value in env.items()]
        command = ["/usr/bin/env", "-i", *assignments, *self._arguments]
        self._run("new-session", "-d", *self._size, "-c", str(self.kimi.project), *command)
        return self

    def __exit__(self, *_: object) -> None:
        pid = self._run("display-message", "-p", "#{pane_pid}", check=False).strip()
        self._run("kill-server", check=False)
        if pid.isdigit():
            _gone(int(pid))
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _run(self, *arguments: str, check: bool = True) -> str:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.kimi.home)}
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, timeout=20, env=environment
        )
        if check and done.returncode:
            raise NotReady(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    @property
    def alive(self) -> bool:
        return self._run("list-sessions", check=False).strip() != ""

    def screen(self) -> str:
        """What the terminal shows, with what scrolled away."""
        return self._run("capture-pane", "-p", "-S", "-500", check=False)

    def type(self, text: str, *, enter: bool = True) -> None:
        """Type one line as it is, and Enter once it is on the screen."""
        seen = self.screen().count(text[:60])
        self._run("send-keys", "-l", text)
        if enter:
            # an Enter that the composer reads together with text is a line break of a paste
            until(lambda: self.screen().count(text[:60]) > seen, f"{text!r} is not echoed", 30, 0.1)
            time.sleep(0.3)
            self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, Escape, C-c, Down…"""
        self._run("send-keys", *keys)

    def wait(self, text: str, timeout_s: float = 30) -> str:
        """Wait until the screen shows a text; the screen."""
        try:
            return until(lambda: s if text in (s := self.screen()) else None, text, timeout_s, 0.1)
        except NotReady:
            raise NotReady(f"{text!r} did not appear on:\n{self.screen().strip()}") from None

    def ready(self, timeout_s: float = 40) -> None:
        """Wait until the composer takes a prompt; trusts the project where the vendor asks (newer 2.x)."""

        def check() -> bool:
            screen = self.screen()
            if "Trust this folder?" in screen and "Welcome" not in screen:
                self.press("Enter")
            return "Welcome to Kimi Code!" in screen and "context: " in screen

        until(check, "the welcome screen", timeout_s, 0.2)

    def wait_end(self, timeout_s: float = 20) -> None:
        """Wait until the program has ended."""
        until(lambda: not self.alive, "the program goes on", timeout_s)


def _gone(pid: int) -> None:
    """Make sure that a process which lost its terminal is gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, 9)
