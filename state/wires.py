"""What is remembered of a link's connection between two batches of its numbered lines. Bytes only.

The number of the last line that was taken is the version: a batch that two processes take at once, because
the link sent it again, moves the memory once.
"""

from __future__ import annotations

from dataclasses import dataclass

from state.connection import Client
from state.keys import Keys
from state.lua import Script
from state.sessions import DAY_MS

_WIRE = Script("wire")

KEEP_MS = 7 * DAY_MS
"""How long the memory of a silent connection is kept."""
OVER_MS = DAY_MS // 24
"""The same of one that has ended, whose last batch may come again."""
MAX_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """`number` is that of the last line taken, 0 where nothing is known; then `value` is None."""

    number: int = 0
    value: bytes | None = None


class Wires:
    """The memories of all connections."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def load(self, emitter: str, link: str) -> Memory:
        """What is remembered of the connection `link` of that emitter. Raises StateError."""
        at = self._keys.wire(emitter, link)
        number, value = await self._client.call(at, "HMGET", at, "n", "v")
        return Memory() if number is None else Memory(int(number), value)

    async def move(
        self, emitter: str, link: str, known: Memory, memory: Memory, *, keep_ms: int = KEEP_MS
    ) -> bool:
        """Replace `known` by `memory`; False, and nothing written, where it stands elsewhere by now.

        Raises StateError; ValueError for a value above `MAX_BYTES`.
        """
        value = memory.value or b""
        if len(value) > MAX_BYTES:
            raise ValueError(f"the memory of a connection may have {MAX_BYTES} bytes, not {len(value)}")
        at = self._keys.wire(emitter, link)
        moved = await self._client.script(_WIRE, (at,), (known.number, memory.number, value, keep_ms))
        return bool(moved)
