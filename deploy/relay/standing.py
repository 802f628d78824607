"""What a relay must know again after a connection was made: who lives, and who waits for an answer.

A relay takes the sender of a session's events for its owner, so one event of each live session makes us the
owner of all. Which one is chosen so that the relay never sees an event before those that come ahead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from deploy.relay.transport import Parcel
from handlers.aep.envelope import SEQ_ORIGIN_MS
from handlers.clock import Clock
from handlers.errors import InvalidState
from handlers.lifecycle.reducer import UNKNOWN
from handlers.lifecycle.state import SessionState
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import DAY_MS, Sessions

SKEW_MS = 5_000
"""How far apart the clocks of replicas and Redis may be."""

_MOST = 10_000
_TOGETHER = 64
_PAGE = 500


class Standing:
    """Looks at our own sessions: those that have not ended and were active within a day."""

    def __init__(self, sessions: Sessions, replay: Replay, keys: Keys, clock: Clock) -> None:
        self._sessions = sessions
        self._replay = replay
        self._keys = keys
        self._clock = clock

    async def earliest(self, settled_ms: Sequence[int | None]) -> AsyncIterator[tuple[SessionKey, Parcel]]:
        """The earliest held event of each live session, where the relay is known to have had it.

        `settled_ms` has, for each shard, the server's time of the last commit that the relay confirmed, None
        where everything counts as confirmed. Raises StateError.
        """
        async for key, _ in self._live():
            settled = settled_ms[self._keys.shard_of(key)]
            page = await self._replay.read(key, -1, 1)
            for seq, body in page.entries:
                # A position is no lower than the time of its commit, so this one was committed before.
                if settled is None or seq + SEQ_ORIGIN_MS <= settled - SKEW_MS:
                    yield key, Parcel(key, seq, body)

    async def waiting(self) -> AsyncIterator[Parcel]:
        """The stored `attention.requested` of every request that is open. Raises StateError."""
        async for key, state in self._live():
            wanted = {request.id: request.at for request in state.requests.values()}
            wanted |= {gate.id: gate.at for gate in state.gates.values() if gate.verdict is None}
            if wanted:
                for parcel in await self._find(key, wanted):
                    yield parcel

    async def _live(self) -> AsyncIterator[tuple[SessionKey, SessionState]]:
        since_ms = self._clock.now_ms() - DAY_MS
        for shard in range(self._keys.shards):
            found = await self._sessions.sessions(shard, since_ms=since_ms, limit=_MOST)
            keys = [key for key in found if key.session != UNKNOWN]
            for start in range(0, len(keys), _TOGETHER):
                part = keys[start : start + _TOGETHER]
                records = await asyncio.gather(*(self._sessions.load(key) for key in part))
                for key, record in zip(part, records, strict=True):
                    state = _decode(record.state)
                    if state is not None and not state.over:
                        yield key, state

    async def _find(self, key: SessionKey, wanted: dict[str, int]) -> list[Parcel]:
        """The events with these ids; the values are the times of their making, Unix milliseconds."""
        found: list[Parcel] = []
        after = max(-1, min(wanted.values()) - SEQ_ORIGIN_MS - 1)
        marks = [f'"id":"{identity}"'.encode() for identity in wanted]
        while True:
            page = await self._replay.read(key, after, _PAGE)
            for seq, body in page.entries:
                if any(mark in body for mark in marks):
                    found.append(Parcel(key, seq, body))
            if len(found) >= len(marks) or len(page.entries) < _PAGE:
                return found
            after = page.entries[-1][0]


def _decode(state: bytes | None) -> SessionState | None:
    try:
        return None if state is None else SessionState.decode(state)
    except InvalidState:
        return None
