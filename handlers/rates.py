"""How much each token may hand in: one bucket a token and process, filled at the token's rate.

A bucket may be overdrawn by the request that empties it, because how many events a body holds is known only
when it has been read; the next one waits until the debt is paid.
"""

from __future__ import annotations

from handlers.tokens import Principal

_BURST_SECONDS = 5.0
_LEAST_BURST = 10.0
_MOST = 10_000


class Rates:
    """`default` is in events per second, 0 for no limit. Seconds are those of the caller's steady clock."""

    def __init__(self, default: int) -> None:
        self._default = default
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, principal: Principal, now: float) -> float:
        """Seconds until this token may hand in something; 0 when it may now."""
        rate = self._rate(principal)
        if not rate:
            return 0.0
        level = self._level(principal.name, rate, now)
        return 0.0 if level >= 1 else (1 - level) / rate

    def admits(self, principal: Principal, now: float) -> bool:
        """Charge one event if this token may hand it in now; whether it may."""
        if not self._rate(principal):
            return True
        if self.wait(principal, now):
            return False
        self.take(principal, now)
        return True

    def take(self, principal: Principal, now: float, events: int = 1) -> None:
        """Charge what was handed in."""
        rate = self._rate(principal)
        if rate:
            if len(self._buckets) >= _MOST:
                self._buckets.clear()
            self._buckets[principal.name] = (self._level(principal.name, rate, now) - events, now)

    def _rate(self, principal: Principal) -> int:
        return self._default if principal.rate is None else principal.rate

    def _level(self, name: str, rate: int, now: float) -> float:
        burst = max(_LEAST_BURST, rate * _BURST_SECONDS)
        known = self._buckets.get(name)
        return burst if known is None else min(burst, known[0] + (now - known[1]) * rate)
