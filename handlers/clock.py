"""The clocks of a process, as an object, so that tests can move time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for events and state, steady time for deadlines."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""

    def steady(self) -> float:
        """Seconds of a clock that never jumps; only differences mean something."""


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # The function itself: it is asked several times an event.
    steady = staticmethod(time.monotonic)
