"""The duplex way to a relay (AEP-0003 §3.5): one connection for each agent of each emitter.

A connection says in its hello whose sessions it speaks for and what they take, so sessions that differ in
that cannot share one: the relay's roster, and its refusal of a name that two tenants use, would be wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from deploy.relay.groups import task_group
from deploy.relay.transport import Address, Guard, Parcel, RelayError, Timing
from deploy.relay.uplink import Identity, OnCommand, Uplink
from handlers.aep.levels import JSONObject
from handlers.agents import KIMI_CODE
from handlers.counters import Counters


class Sockets:
    """All connections to one relay; when one is lost, all are."""

    def __init__(
        self,
        address: Address,
        token: str | None,
        emitter: str,
        declaration: Callable[[str], JSONObject],
        on_command: OnCommand,
        guard: Guard,
        counters: Counters,
        timing: Timing,
    ) -> None:
        self._address = address
        self._token = token
        self._home = Identity(emitter, KIMI_CODE)
        self._declaration = declaration
        self._on_command = on_command
        self._guard = guard
        self._counters = counters
        self._timing = timing
        self._uplinks: dict[Identity, Uplink] = {}
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Connect as who we are; as others when they have something to say."""
        await (await self._uplink(self._home)).confirm()

    async def deliver(self, parcels: Sequence[Parcel]) -> None:
        parts: dict[Identity, list[bytes]] = {}
        for parcel in parcels:
            parts.setdefault(Identity(parcel.key.emitter, parcel.key.agent), []).append(parcel.body)
        uplinks = [(await self._uplink(identity), bodies) for identity, bodies in parts.items()]
        async with task_group() as group:
            for uplink, bodies in uplinks:
                group.create_task(uplink.deliver(bodies))

    async def watch(self) -> None:
        while True:
            self._changed.clear()
            watched: list[asyncio.Task[None]] = [
                asyncio.create_task(uplink.watch()) for uplink in self._uplinks.values() if uplink.opened
            ]
            grown = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait([*watched, grown], return_when=asyncio.FIRST_COMPLETED)
                for task in watched:
                    if task.done():
                        await task
            finally:
                for started in (*watched, grown):
                    started.cancel()
                await asyncio.gather(*watched, grown, return_exceptions=True)

    @property
    def heard(self) -> float:
        return min((uplink.heard for uplink in self._uplinks.values() if uplink.opened), default=0.0)

    async def close(self, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.close):
                parting = (uplink.close(reason) for uplink in self._uplinks.values())
                await asyncio.gather(*parting, return_exceptions=True)

    def abort(self) -> None:
        for uplink in self._uplinks.values():
            uplink.abort()

    async def _uplink(self, identity: Identity) -> Uplink:
        async with self._opening:
            uplink = self._uplinks.get(identity)
            if uplink is None:
                uplink = Uplink(
                    self._address,
                    self._token,
                    identity,
                    self._declaration(identity.agent),
                    self._on_command,
                    self._guard,
                    self._counters,
                    self._timing,
                )
                self._uplinks[identity] = uplink
                await uplink.open()
                self._changed.set()
            elif uplink.ended is not None:
                raise RelayError(uplink.ended)
            return uplink
