"""The index of held gates: which hooks wait in a shard, until when, and in which process.

It is written by the commits that open, decide and close a gate, so it says what the sessions say; reading
it is one call a shard, however many gates wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from state.connection import Client
from state.keys import Keys, SessionKey
from state.sessions import Mark

Phase = Literal["open", "decided"]

_PHASES: dict[bytes, Phase] = {b"o": "open", b"d": "decided"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One gate of the index. `ticket` begins with the name of its holder and a dot."""

    ticket: str
    phase: Phase
    until_ms: int  # Unix milliseconds
    name: bytes  # of the session

    @property
    def key(self) -> SessionKey:
        """The session."""
        return SessionKey.parse(self.name)

    @property
    def holder(self) -> str:
        """The process that holds the hook."""
        return self.ticket.partition(".")[0]


def mark(ticket: str, phase: Phase, until_ms: int, key: SessionKey) -> Mark:
    """The index entry of a gate."""
    return Mark(ticket, b"%b%d/%b" % (phase[0].encode(), until_ms, key.name))


def unmark(ticket: str) -> Mark:
    """The gate is closed."""
    return Mark(ticket, None)


class Gates:
    """Reads the index."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def waiting(self, shard: int) -> list[Waiting]:
        """Every gate that is held in a shard. Raises StateError."""
        at = self._keys.shard(shard, "gates")
        found = cast("list[bytes]", await self._client.call(at, "HGETALL", at, lane="read"))
        return [_parse(found[i], found[i + 1]) for i in range(0, len(found), 2)]


def _parse(ticket: bytes, value: bytes) -> Waiting:
    head, _, name = value.partition(b"/")
    return Waiting(ticket.decode(), _PHASES[head[:1]], int(head[1:]), name)
