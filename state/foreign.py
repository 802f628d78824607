"""What others post to us: their events with their own positions, and commands.

Both travel the feed as received, also when they come again: a retry must be able to cross us (AEP-0003
§5). Events are kept once per `(source, id)`, sorted by their own position, for replay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

from state.connection import Client
from state.keys import Keys, SessionKey
from state.lua import Script
from state.sessions import Bounds

_ADMIT = Script("admit")
_PUBLISH = Script("publish")

Position: TypeAlias = "tuple[int, int]"
"""Epoch and seq, each 0 to 2^53-1."""

MAX_SOURCES = 64
"""Most sources kept per session; the longest silent one is forgotten first."""

_HEAD = 33  # 16 digits, a dot, 16 digits
_DIGEST = 16


@dataclass(frozen=True, slots=True)
class ForeignPage:
    """Events of one source behind the asked position, in the order of their positions.

    `trimmed_to` is the highest position that was held once and is gone, None when nothing is.
    """

    entries: tuple[tuple[Position, bytes], ...]
    earliest: Position | None
    trimmed_to: Position | None

    def exhausted(self, after: Position) -> bool:
        """Whether an event behind `after` was held once and is gone (AEP-0003 §5)."""
        return self.trimmed_to is not None and self.trimmed_to > after


class Foreign:
    """Admission and replay of what others posted."""

    def __init__(self, client: Client, keys: Keys, bounds: Bounds | None = None) -> None:
        self._client = client
        self._keys = keys
        self._bounds = bounds or Bounds()

    async def admit(
        self, key: SessionKey, source: str, event_id: str, position: Position, body: bytes, *, now_ms: int
    ) -> bool:
        """Pass an event on, and keep it unless this `(source, event_id)` was admitted before.

        Returns whether it is new. Raises StateError, or ValueError for a position out of range.
        """
        keys = self._keys.session(key)
        own = self._keys.foreign(key, source)
        digest = _digest(source, event_id)
        names = (own.events, own.ids, own.low, keys.sources, keys.foreign, keys.feed, keys.feed_number)
        bounds = self._bounds
        arguments = (
            _head(position) + digest[:_DIGEST] + body,
            digest,
            now_ms,
            bounds.buffer,
            bounds.keep_ms,
            bounds.feed,
            keys.name,
            source.encode("utf-8", "surrogatepass"),
            body,
            MAX_SOURCES,
        )
        return bool(await self._client.script(_ADMIT, names, arguments, durable=True))

    async def pass_on(self, key: SessionKey, body: bytes) -> None:
        """Put an event that is not replayed (one of an agent, without a session's position) on the feed."""
        await self._publish(key, "f", body)

    async def command(self, key: SessionKey, body: bytes) -> None:
        """Put a command for this session on the feed, for whichever process holds its claim."""
        await self._publish(key, "c", body)

    async def sources(self, key: SessionKey) -> list[str]:
        """Sources that posted events of this session, the most recent first."""
        at = self._keys.session(key).sources
        found = await self._client.call(at, "ZREVRANGE", at, 0, -1, lane="read")
        return [source.decode("utf-8", "surrogatepass") for source in found]

    async def sessions(
        self, shard: int, *, since_ms: int = 0, limit: int = 1000, offset: int = 0
    ) -> list[SessionKey]:
        """Sessions of a shard that others posted events for, the most recent first."""
        at = self._keys.shard(shard, "foreign")
        command = ("ZREVRANGEBYSCORE", at, "+inf", since_ms, "LIMIT", offset, limit)
        return [SessionKey.parse(name) for name in await self._client.call(at, *command, lane="read")]

    async def read(
        self, key: SessionKey, source: str, after: Position | None = None, limit: int = 500
    ) -> ForeignPage:
        """Up to `limit` events of `source` behind `after` (None: from the earliest held).

        Two events at one position are both kept; a page is never cut between them.
        """
        own = self._keys.foreign(key, source)
        # The bytes behind a head are above every member at that position.
        start = b"-" if after is None else b"(" + _head(after) + b"\xff"
        command = ("ZRANGEBYLEX", own.events, start, "+", "LIMIT", 0, limit)
        rows = list(await self._client.call(own.events, *command, lane="read"))
        if len(rows) == limit:
            last = rows[-1][:_HEAD]
            whole = ("ZRANGEBYLEX", own.events, b"(" + rows[-1], b"[" + last + b"\xff")
            rows += await self._client.call(own.events, *whole, lane="read")
        first = await self._client.call(own.events, "ZRANGE", own.events, 0, 0, lane="read")
        low = await self._client.call(own.low, "GET", own.low, lane="read")
        return ForeignPage(
            entries=tuple((_position(row), row[_HEAD + _DIGEST :]) for row in rows),
            earliest=_position(first[0]) if first else None,
            trimmed_to=_position(low) if low else None,
        )

    async def _publish(self, key: SessionKey, kind: str, body: bytes) -> None:
        keys = self._keys.session(key)
        arguments = (keys.name, kind, body, self._bounds.feed, self._bounds.keep_ms)
        await self._client.script(_PUBLISH, (keys.feed, keys.feed_number), arguments)


def _digest(source: str, event_id: str) -> bytes:
    one = source.encode("utf-8", "surrogatepass")
    two = event_id.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d:%b%b" % (len(one), one, two)).hexdigest()[:32].encode()


def _head(position: Position) -> bytes:
    epoch, seq = position
    if not (0 <= epoch < 2**53 and 0 <= seq < 2**53):
        raise ValueError(f"a position is two whole numbers from 0 to 2^53-1, not {position}")
    return b"%016d.%016d" % (epoch, seq)


def _position(member: bytes) -> Position:
    return int(member[:16]), int(member[17:_HEAD])
