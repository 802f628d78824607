"""A line for every refusal: who was refused what, and never by which token, with which query or which body.

Lines are bounded a second, so that whoever is refused cannot fill a disk; what was left out is counted.
"""

from __future__ import annotations

import logging

from starlette.types import Scope

from handlers.clock import Clock
from handlers.counters import Counters
from handlers.errors import Refused
from handlers.tokens import Principal

log = logging.getLogger(__name__)

_MOST = 20


class Audit:
    """Counts and logs what a process refuses."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def refused(self, scope: Scope, error: Refused) -> None:
        """A request has been answered with `error`."""
        self._counters.add(f"refused.{error.code}")
        second = self._clock.now_ms() // 1000
        if second != self._second:
            if self._left_out:
                log.warning("refusals that were not logged: %d", self._left_out)
            self._second, self._lines, self._left_out = second, 0, 0
        self._lines += 1
        if self._lines > _MOST:
            self._left_out += 1
            return
        client = scope.get("client")
        principal: Principal | None = scope.get("aep.principal")
        log.info(
            "refused: %d %s %s %s from %s as %s",
            error.status,
            error.code,
            scope.get("method", scope["type"]),
            ascii(scope.get("path", ""))[1:101].rstrip("'\""),
            client[0] if client else "-",
            f"{principal.emitter} ({principal.name})" if principal is not None else "-",
        )
