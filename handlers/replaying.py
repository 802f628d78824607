"""Replay for consumers: which sessions are meant, and what is held of them, in order (AEP-0003 §5, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from handlers.agents import OURS
from handlers.delivery import Item
from handlers.positions import Position, Resume
from state.foreign import Foreign
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Sessions

_PAGE = 500
_AHEAD = 16
_INDEX_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Something behind the asked position was held once and is gone; the earliest held follows."""

    session: str
    epoch: int
    seq: int


Chunk = Exhausted | list[Item]


@dataclass(frozen=True, slots=True)
class _Ask:
    key: SessionKey
    after: tuple[int, int] | None


class Replayer:
    """Reads what Redis holds; any replica gives the same answer."""

    def __init__(
        self,
        sessions: Sessions,
        replay: Replay,
        foreign: Foreign,
        keys: Keys,
        emitters: Callable[[], Iterable[str]],
    ) -> None:
        self._sessions = sessions
        self._replay = replay
        self._foreign = foreign
        self._keys = keys
        self._emitters = emitters

    async def chunks(
        self, resume: Resume, only: frozenset[str] | None = None, *, scope: str | None = None
    ) -> AsyncIterator[Chunk]:
        """Everything after the positions of `resume`, session by session, each in order.

        `only` names the sessions that a filter lets through at all, `scope` the only emitter whose sessions
        are meant. Raises `StateError` when Redis is away.
        """
        asks = await self._asks(resume, only, scope)
        for start in range(0, len(asks), _AHEAD):
            group = asks[start : start + _AHEAD]
            firsts = await asyncio.gather(*(self._own(ask, _start(ask)) for ask in group))
            others = await asyncio.gather(*(self._foreign.sources(ask.key) for ask in group))
            for ask, (chunks, last), sources in zip(group, firsts, others, strict=True):
                while True:
                    for chunk in chunks:
                        yield chunk
                    if last is None:
                        break
                    chunks, last = await self._own(ask, last)
                for source in sources:
                    async for chunk in self._others(ask, source):
                        yield chunk

    async def _asks(self, resume: Resume, only: frozenset[str] | None, scope: str | None) -> list[_Ask]:
        if resume == "all":
            if only is not None:
                return [_Ask(key, None) for name in sorted(only) for key in self._keys_of(name, scope)]
            return [_Ask(key, None) for key in await self._everything() if scope in (None, key.emitter)]
        positions: Iterable[Position] = resume
        return [
            _Ask(key, (position.epoch, position.seq))
            for position in positions
            if only is None or position.session in only
            for key in self._keys_of(position.session, scope)
        ]

    def _keys_of(self, session: str, scope: str | None) -> list[SessionKey]:
        emitters = sorted(self._emitters()) if scope is None else [scope]
        return [SessionKey(emitter, session, agent) for emitter in emitters for agent in OURS]

    async def _everything(self) -> list[SessionKey]:
        """Every session in the indexes, ours in the order of their last activity, then those of others."""
        found: dict[SessionKey, int] = {}
        posted: dict[SessionKey, None] = {}
        for shard in range(self._keys.shards):
            offset = 0
            while page := await self._sessions.activity(shard, limit=_INDEX_PAGE, offset=offset):
                for entry in page:
                    found.setdefault(entry.key, entry.active_ms)
                offset += len(page)
            offset = 0
            while keys := await self._foreign.sessions(shard, limit=_INDEX_PAGE, offset=offset):
                posted.update(dict.fromkeys(keys))
                offset += len(keys)
        ours = sorted(found, key=lambda key: (found[key], key.session))
        return [*ours, *(key for key in reversed(posted) if key not in found)]

    async def _own(self, ask: _Ask, after: int | None) -> tuple[list[Chunk], int | None]:
        """One page of a session of ours, and the position to go on from."""
        if after is None:
            return [], None
        page = await self._replay.read(ask.key, after, _PAGE)
        chunks: list[Chunk] = []
        if ask.after is not None and after == ask.after[1] and page.exhausted(after):
            earliest = page.earliest if page.earliest is not None else page.trimmed_to + 1
            chunks.append(Exhausted(ask.key.session, 0, earliest))
        chunks.append([Item.parse("own", body, ask.key.emitter) for _, body in page.entries])
        return chunks, page.entries[-1][0] if len(page.entries) == _PAGE else None

    async def _others(self, ask: _Ask, source: str) -> AsyncIterator[Chunk]:
        """What others posted for the session under one source."""
        after = ask.after
        while True:
            page = await self._foreign.read(ask.key, source, after, _PAGE)
            if ask.after is not None and after == ask.after and page.exhausted(ask.after):
                yield Exhausted(ask.key.session, *(page.earliest or _behind(page.trimmed_to)))
            yield [Item.parse("foreign", body, ask.key.emitter) for _, body in page.entries]
            if len(page.entries) < _PAGE:
                return
            after = page.entries[-1][0]


def _start(ask: _Ask) -> int | None:
    """Where to begin in a stream of ours, whose epoch is always 0; None when nothing of it can be meant."""
    if ask.after is None:
        return -1
    return ask.after[1] if ask.after[0] == 0 else None


def _behind(position: tuple[int, int] | None) -> tuple[int, int]:
    epoch, seq = position or (0, 0)
    return epoch, seq + 1
