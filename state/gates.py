"""The index of held gates: which hooks wait in a shard, until when, and in which process.

It is written by the commits that open, decide and close a gate, so it says what the sessions say. It is read
in pages: thousands of gates at once would be a pause for everybody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, cast

from state.connection import Client
from state.keys import Keys, SessionKey
from state.sessions import Mark

Phase = Literal["open", "decided"]

_DECIDED = b"d"
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """One gate of the index. `ticket` begins with the name of its holder and a dot."""

    ticket: str
    value: bytes  # first letter of the phase, Unix milliseconds of its end, a slash, name of the session

    @property
    def decided(self) -> bool:
        """Whether an answer was taken, which its holder may not know of."""
        return self.value[:1] == _DECIDED

    @property
    def key(self) -> SessionKey:
        """The session."""
        return SessionKey.parse(self.value.partition(b"/")[2])

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

    async def waiting(self, shard: int) -> AsyncIterator[list[Waiting]]:
        """Every gate that is held in a shard all the while, in pages; one may come twice.

        Raises StateError.
        """
        at = self._keys.shard(shard, "gates")
        cursor = b"0"
        while True:
            command = ("HSCAN", at, cursor, "COUNT", _PAGE)
            cursor, found = cast(
                "tuple[bytes, list[bytes]]", await self._client.call(at, *command, lane="read")
            )
            yield [Waiting(found[i].decode(), found[i + 1]) for i in range(0, len(found), 2)]
            if cursor == b"0":
                return
