"""Live claims: which sessions the open connections of every process speak for.

Each process keeps its own claims in one hash that dies with it; a list names the processes. Bytes only: what
a claim says is the caller's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import cast

from state.connection import Client
from state.keys import Keys
from state.link import Argument
from state.lua import Script

_CLAIMS = Script("claims")
_PART = 2_000


class Claims:
    """The claims of one process, and a view on those of all. `process` must be unique."""

    def __init__(self, client: Client, keys: Keys, process: str) -> None:
        self.process = process
        self._client = client
        self._keys = keys
        self._all = keys.shard(0, "claims")

    async def add(self, claims: Mapping[str, bytes], *, now_ms: int, ttl_ms: int) -> None:
        """Claim more, and prolong all. Raises StateError."""
        await self._say(claims, now_ms, ttl_ms, whole=False)

    async def replace(self, claims: Mapping[str, bytes], *, now_ms: int, ttl_ms: int) -> None:
        """Claim exactly these. Raises StateError."""
        items = list(claims.items())
        await self._say(dict(items[:_PART]), now_ms, ttl_ms, whole=True)
        for start in range(_PART, len(items), _PART):
            await self._say(dict(items[start : start + _PART]), now_ms, ttl_ms, whole=False)

    async def remove(self, names: Iterable[str]) -> None:
        """Claim these no more. Raises StateError."""
        fields = [name.encode("utf-8", "surrogatepass") for name in names]
        for start in range(0, len(fields), _PART):
            at = self._of(self.process)
            await self._client.call(at, "HDEL", at, *fields[start : start + _PART])

    async def everywhere(self) -> list[tuple[str, str, bytes]]:
        """Process, name and value of every claim. Raises StateError."""
        members = await self._client.call(self._all, "ZRANGE", self._all, 0, -1, lane="read")
        if not members:
            return []
        processes = [member.decode() for member in members]
        flats = await asyncio.gather(*(self._claimed(process) for process in processes))
        return [
            (process, flat[i].decode("utf-8", "surrogatepass"), flat[i + 1])
            for process, flat in zip(processes, flats, strict=True)
            for i in range(0, len(flat), 2)
        ]

    async def _claimed(self, process: str) -> list[bytes]:
        at = self._of(process)
        return cast("list[bytes]", await self._client.call(at, "HGETALL", at, lane="read"))

    def _of(self, process: str) -> str:
        return self._keys.shard(0, f"claims:{process}")

    async def _say(self, claims: Mapping[str, bytes], now_ms: int, ttl_ms: int, *, whole: bool) -> None:
        arguments: list[Argument] = [self.process, now_ms, ttl_ms, 1 if whole else 0]
        for name, value in claims.items():
            arguments += [name.encode("utf-8", "surrogatepass"), value]
        await self._client.script(_CLAIMS, (self._of(self.process), self._all), arguments)
