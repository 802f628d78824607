"""Replay: what a session's stream still holds behind a position."""

from __future__ import annotations

from dataclasses import dataclass

from state.connection import Client
from state.keys import Keys, SessionKey
from state.lua import Script

_REPLAY = Script("replay")


@dataclass(frozen=True, slots=True)
class Page:
    """Events behind the asked position in rising order.

    `earliest` is the lowest position held, None when nothing is held. `trimmed_to` is the highest position
    that was held once and is gone, 0 for none: the page misses something exactly when that is above the
    asked position.
    """

    entries: tuple[tuple[int, bytes], ...]
    earliest: int | None
    trimmed_to: int

    def exhausted(self, after: int) -> bool:
        """Whether an event behind `after` was held once and is gone (AEP-0003 §5)."""
        return self.trimmed_to > after


class Replay:
    """Reads replay streams; any replica gives the same answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read(self, key: SessionKey, after: int = -1, limit: int = 500) -> Page:
        """Up to `limit` events behind `after` (-1: from the earliest held). Raises StateError."""
        keys = self._keys.session(key)
        names = (keys.record, keys.events, keys.tombstone)
        earliest, gone, *rest = await self._client.script(_REPLAY, names, (after, limit), lane="read")
        return Page(
            entries=tuple((int(rest[i]), rest[i + 1]) for i in range(0, len(rest), 2)),
            earliest=int(earliest) if earliest else None,
            trimmed_to=int(gone),
        )
