"""How far the clock of each process is from that of Redis, so that clocks that differ are seen."""

from __future__ import annotations

import time

from state.connection import Client
from state.keys import Keys

KEEP_MS = 60_000


class Clocks:
    """Offsets are milliseconds, positive for a clock that is ahead. `process` must be unique."""

    def __init__(self, client: Client, keys: Keys, process: str) -> None:
        self._client = client
        self._process = process
        self._key = keys.shard(0, "clocks")

    async def measure(self) -> int:
        """This process's offset, at best as exact as half of what the question took. Raises StateError."""
        before = time.time()
        seconds, micros = await self._client.call(self._key, "TIME")
        after = time.time()
        return round(((before + after) / 2 - int(seconds) - int(micros) / 1e6) * 1000)

    async def say(self, offset_ms: int, redis_ms: int) -> None:
        """Publish it. `redis_ms` is the time by Redis's clock. Raises StateError."""
        await self._client.call(self._key, "HSET", self._key, self._process, f"{offset_ms}/{redis_ms}")
        await self._client.call(self._key, "PEXPIRE", self._key, KEEP_MS)

    async def everywhere(self, redis_ms: int) -> dict[str, int]:
        """The offsets of the processes that live. Raises StateError."""
        flat = await self._client.call(self._key, "HGETALL", self._key, lane="read")
        found: dict[str, int] = {}
        gone: list[bytes] = []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            offset, _, said = value.partition(b"/")
            if redis_ms - int(said) > KEEP_MS:
                gone.append(name)
            else:
                found[name.decode()] = int(offset)
        if gone:
            await self._client.call(self._key, "HDEL", self._key, *gone)
        return found
