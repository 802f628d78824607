"""Leases: one process at a time does a singleton job, and carries its cursors in the same slot.

A lease is a promise about time, so its holder looks at `left()` before every outward act and stops in
time; cursors move only under the fence that Redis still knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from state.connection import Client
from state.errors import LeaseLost
from state.keys import Keys
from state.lua import Script
from state.sessions import DAY_MS

_LEASE = Script("lease")
_RELEASE = Script("release")
_CURSOR = Script("cursor")
_YEAR_MS = 365 * DAY_MS


def now() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where there is one: Redis may not sleep."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(slots=True)
class Lease:
    """A lease in hand. `fence` rises with every new holder of that name."""

    name: str
    holder: str
    fence: int
    ttl_ms: int
    until: float

    def left(self) -> float:
        """Seconds for which this process may still act, counted from before the request: never too long."""
        return self.until - now()

    @property
    def mark(self) -> str:
        """What Redis holds while the lease is ours."""
        return f"{self.fence}/{self.holder}"


class Leases:
    """Leases, their cursors, and which processes live. `holder` names this process; it must be unique."""

    def __init__(self, client: Client, keys: Keys, holder: str) -> None:
        self._client = client
        self._keys = keys
        self.holder = holder

    async def acquire(self, name: str, ttl_ms: int = 10_000) -> Lease | None:
        """The lease, or None while somebody holds it (also this process: a lease is renewed, not retaken)."""
        lease, fence, _ = self._keys.lease(name)
        asked = now()
        got = await self._client.script(_LEASE, (lease, fence), (self.holder, ttl_ms, 0, _YEAR_MS))
        if not got:
            return None
        return Lease(name, self.holder, got, ttl_ms, asked + ttl_ms / 1000)

    async def renew(self, lease: Lease) -> None:
        """Prolong the lease by its ttl. Raises LeaseLost when it ran out or somebody else has it."""
        at, fence, _ = self._keys.lease(lease.name)
        asked = now()
        arguments = (self.holder, lease.ttl_ms, lease.fence, _YEAR_MS)
        if not await self._client.script(_LEASE, (at, fence), arguments):
            lease.until = 0.0
            raise LeaseLost(f"the lease {lease.name!r} is no longer ours")
        lease.until = asked + lease.ttl_ms / 1000

    async def release(self, lease: Lease) -> None:
        """Give the lease back at once, so that a successor need not wait it out."""
        lease.until = 0.0
        at, _, _ = self._keys.lease(lease.name)
        await self._client.script(_RELEASE, (at,), (lease.mark,))

    async def cursors(self, name: str) -> dict[str, str]:
        """The cursors of a job, as its last holder left them."""
        _, _, at = self._keys.lease(name)
        found = await self._client.call(at, "HGETALL", at)
        return {found[i].decode(): found[i + 1].decode() for i in range(0, len(found), 2)}

    async def move(self, lease: Lease, cursors: Mapping[str, str]) -> None:
        """Set cursors. Raises LeaseLost, and moves nothing, when the lease is no longer ours."""
        at, _, names = self._keys.lease(lease.name)
        flat = [text for pair in cursors.items() for text in pair]
        if not await self._client.script(_CURSOR, (at, names), (lease.mark, 30 * DAY_MS, *flat)):
            lease.until = 0.0
            raise LeaseLost(f"the lease {lease.name!r} is no longer ours")

    async def beat(self, ttl_ms: int = 5000) -> None:
        """Say that this process lives, for `ttl_ms`."""
        at = self._keys.alive(self.holder)
        await self._client.call(at, "SET", at, "1", "PX", ttl_ms)

    async def hush(self) -> None:
        """Take that back at once."""
        at = self._keys.alive(self.holder)
        await self._client.call(at, "DEL", at)

    async def lives(self, holder: str) -> bool:
        """Whether a process has said so lately."""
        at = self._keys.alive(holder)
        return bool(await self._client.call(at, "EXISTS", at))
