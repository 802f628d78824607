"""A place in the live feed of a shard: what was committed or posted there, as it happens.

A feed is one bounded stream per shard. Its entries are numbered by the shard, so that a reader which was
too slow, or a server that lost its tail, shows as a gap and never as silence. Readers keep their own
cursor. After a reconnect they go back a few seconds and drop what they have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from redis.exceptions import ResponseError

from state.connection import Client
from state.errors import StateError, Unreachable
from state.keys import Keys, SessionKey
from state.link import Link

Kind: TypeAlias = Literal["event", "notice", "foreign", "command"]

_KINDS: dict[bytes, Kind] = {b"f": "foreign", b"c": "command"}
_SEEN = 50_000


class FeedEntry(Struct, frozen=True):
    """One thing that travelled the feed: a struct, because every event makes one in every process.

    `event` is a committed event at position `seq`. `notice` is the hint of a commit, for whoever waits on
    that session. `foreign` and `command` are bodies as others posted them; their `seq` is 0. `place` and
    `number` are those of the commit in the feed.
    """

    kind: Kind
    key: SessionKey
    seq: int
    body: bytes
    place: bytes
    number: int

    @property
    def cursor(self) -> str:
        """Where a reader stands once it has dealt with this entry; entries of one commit share it."""
        return f"{self.place.decode()}/{self.number}"

    @property
    def at_ms(self) -> int:
        """When the server took the commit, by its own clock, Unix milliseconds."""
        return int(self.place.partition(b"-")[0])


@dataclass(frozen=True, slots=True)
class Gap:
    """`missed` commits of a shard were trimmed or lost before they were read.

    `restarted` says that the numbering itself began anew: the server was emptied or lost its tail, and how
    much is missing cannot be known.
    """

    shard: int
    missed: int
    restarted: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read of the feed brought."""

    entries: tuple[FeedEntry, ...]
    gap: Gap | None = None


class Cursor:
    """A place in one shard's feed, and the connection that reads on from it.

    `cursor` is that of an entry dealt with before, `""` for the beginning of what is held, or None for the
    end of the feed as of the first read. Not for concurrent use.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        shard: int,
        cursor: str | None = None,
        *,
        block_ms: int = 5000,
        rewind_ms: int = 5000,
        limit: int = 200,
    ) -> None:
        self.shard = shard
        self._client = client
        self._key = keys.shard(shard, "feed")
        self._block_ms = block_ms
        self._rewind_ms = rewind_ms
        self._limit = limit
        self._link: Link | None = None
        self._at: tuple[int, int] | None = None
        self._number: int | None = None
        if cursor is not None:
            place, _, number = cursor.partition("/")
            self._at = _place(place.encode()) if place else (0, 0)
            self._number = int(number) if number else None
        self._origin = self._at
        self._high = self._at or (0, 0)
        # What was handed out, in two generations: entries, and the last position of each session.
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._last: dict[bytes, int] = {}
        self._last_before: dict[bytes, int] = {}

    async def settle(self) -> None:
        """Fix the place if it is still "the end of the feed". Raises StateError."""
        if self._at is not None:
            return
        top = await self._top()
        self._at = self._origin = self._high = top[0]
        self._number = top[1]

    async def read(self) -> Batch:
        """The next entries; empty when nothing came for `block_ms`.

        Raises StateError when the connection broke. The next read then connects anew and goes back by
        `rewind_ms`; whatever this cursor has handed out before, it does not hand out again.
        """
        try:
            await self.settle()
            if self._link is None:
                self._link = await self._client.blocking(self._key, self._block_ms / 1000 + 2)
            assert self._at is not None
            at = f"{self._at[0]}-{self._at[1]}"
            reply = await self._link.send(
                "XREAD", "COUNT", self._limit, "BLOCK", self._block_ms, "STREAMS", self._key, at
            )
            if not reply:
                return Batch((), await self._check_end())
        except ResponseError as error:
            await self._lost()
            raise Unreachable(str(error)) from error
        except StateError:
            await self._lost()
            raise
        return self._take(reply[0][1])

    async def close(self) -> None:
        """Close the connection; the cursor may still be read on from."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _take(self, rows: Sequence[Any]) -> Batch:
        entries: list[FeedEntry] = []
        missed, restarted = 0, False
        for row_id, fields in rows:
            place = _place(row_id)
            number, name = int(fields[1]), fields[3]
            if place > self._high:
                if self._number is not None and number <= self._number:
                    restarted = True
                elif self._number is not None and number > self._number + 1:
                    missed += number - self._number - 1
                self._high, self._number = place, number
            self._at = place
            again = row_id in self._seen or row_id in self._seen_before
            self._seen.add(row_id)
            key = _key(name)
            kind = _KINDS.get(fields[4])
            if kind is not None:
                if not again:
                    entries.append(FeedEntry(kind, key, 0, fields[5], row_id, number))
                continue
            last = self._last.get(name) or self._last_before.get(name, 0)
            for i in range(6, len(fields), 2):
                seq = int(fields[i])
                if seq > last:
                    entries.append(FeedEntry("event", key, seq, fields[i + 1], row_id, number))
                    last = seq
            self._last[name] = last
            if fields[5] and not again:
                entries.append(FeedEntry("notice", key, 0, fields[5], row_id, number))
        if len(self._seen) > _SEEN:
            self._seen, self._seen_before = set(), self._seen
            self._last, self._last_before = {}, self._last
        if restarted:
            # What was written between the loss and this entry may have been passed over.
            self._at = min(self._origin or (0, 0), self._at or (0, 0))
        return Batch(tuple(entries), Gap(self.shard, missed, restarted) if missed or restarted else None)

    async def _check_end(self) -> Gap | None:
        """A feed that ends before our place lost its tail while the clock went back: read what it has."""
        top, number = await self._top()
        if self._at is None or top >= self._at:
            return None
        if self._origin is None or top < self._origin:
            self._origin = (0, 0)
        self._at = self._origin
        self._high, self._number = top, number
        return Gap(self.shard, 0, restarted=True) if number is not None else None

    async def _top(self) -> tuple[tuple[int, int], int | None]:
        rows = await self._client.call(self._key, "XREVRANGE", self._key, "+", "-", "COUNT", 1, lane="read")
        return (_place(rows[0][0]), int(rows[0][1][1])) if rows else ((0, 0), None)

    async def _lost(self) -> None:
        await self.close()
        if self._at is not None and self._at > (self._origin or (0, 0)):
            back = (max(0, self._at[0] - self._rewind_ms), 0)
            self._at = max(back, self._origin or (0, 0))


_key = lru_cache(maxsize=4096)(SessionKey.parse)


def _place(entry: bytes) -> tuple[int, int]:
    ms, _, seq = entry.partition(b"-")
    return int(ms), int(seq or 0)
