"""Waiting for something outside this process, with a limit and a name for what was waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotReady(Exception):
    """What the driver waited for did not come in time."""


def until(check: Callable[[], T | None], what: str, timeout_s: float = 20, pause_s: float = 0.05) -> T:
    """Call `check` until it gives something true; `NotReady` after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NotReady(what)
        time.sleep(pause_s)


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
