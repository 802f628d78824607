"""A tiny reducer and the loop around it, to test commits without the meaning of any event."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from state.keys import SessionKey
from state.sessions import Committed, Record, Sessions


@dataclass(frozen=True, slots=True)
class Fold:
    """The state: how many events there were, and a hash chain over their bodies."""

    count: int = 0
    chain: str = ""
    last: int = 0

    def add(self, position: int, body: bytes) -> Fold:
        return Fold(self.count + 1, hashlib.sha256(self.chain.encode() + body).hexdigest(), position)

    def encode(self) -> bytes:
        return json.dumps([self.count, self.chain, self.last]).encode()

    @classmethod
    def decode(cls, state: bytes | None) -> Fold:
        return cls(*json.loads(state)) if state is not None else cls()


def reduce(record: Record, inputs: Sequence[bytes], now_ms: int) -> tuple[Fold, list[tuple[int, bytes]]]:
    """Every input becomes one event at the next position."""
    fold, last, events = Fold.decode(record.state), 0, []
    last = max(fold.last, record.top)
    for body in inputs:
        last = max(last + 1, now_ms)
        fold = fold.add(last, body)
        events.append((last, body))
    return fold, events


class Engine:
    """Load or guess, reduce, commit, again on a conflict; one commit of a session in flight."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.guesses: dict[SessionKey, Record] = {}
        self.conflicts = 0
        self.commits = 0
        self._locks: dict[SessionKey, asyncio.Lock] = {}
        self._waiting: dict[SessionKey, list[bytes]] = {}

    async def apply(self, key: SessionKey, inputs: Sequence[bytes], now_ms: int) -> None:
        """Commit the inputs as one batch, however often another one comes first."""
        record = self.guesses.get(key) or await self.sessions.load(key)
        while True:
            fold, events = reduce(record, inputs, now_ms)
            name = self.sessions.commit_id()
            answer = await self.sessions.commit(
                key,
                expected=record.version,
                commit_id=name,
                state=fold.encode(),
                events=events,
                now_ms=now_ms,
            )
            if isinstance(answer, Committed):
                self.commits += 1
                self.guesses[key] = Record(fold.encode(), name, fold.last)
                return
            self.conflicts += 1
            record = answer.record
            await asyncio.sleep(random.uniform(0, 0.002))

    async def submit(self, key: SessionKey, body: bytes, now_ms: int) -> None:
        """Commit one input together with those that came while the session was busy."""
        waiting = self._waiting.setdefault(key, [])
        waiting.append(body)
        async with self._locks.setdefault(key, asyncio.Lock()):
            batch, waiting[:] = list(waiting), []
            if batch:
                await self.apply(key, batch, now_ms)
