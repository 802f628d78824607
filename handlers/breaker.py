"""Failing fast while Redis does not answer, with a single probe now and then.

Without it every hook would wait for its whole deadline as long as Redis is frozen; with it only the first
ones do, and after that one in every pause.
"""

from __future__ import annotations

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class Breaker:
    """Seconds are those of the caller's steady clock."""

    __slots__ = ("_blocked_until", "_pause", "_probing", "reason")

    def __init__(self) -> None:
        self._pause = 0.0
        self._blocked_until = 0.0
        self._probing = False
        self.reason: str | None = None

    @property
    def closed(self) -> bool:
        """Whether the last answer from Redis was a good one."""
        return self.reason is None

    def allow(self, now: float) -> bool:
        """Whether to try at `now`. While the trouble lasts, one caller a pause gets True: the probe."""
        if self.reason is None:
            return True
        if self._probing or now < self._blocked_until:
            return False
        self._probing = True
        return True

    def succeed(self) -> None:
        """Redis answered."""
        self._pause = 0.0
        self._probing = False
        self.reason = None

    def fail(self, now: float, reason: str) -> None:
        """Redis did not answer in time, or not at all; `reason` is for people."""
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._blocked_until = now + self._pause
        self._probing = False
        self.reason = reason

    def release(self) -> None:
        """A probe ended without learning anything."""
        self._probing = False
