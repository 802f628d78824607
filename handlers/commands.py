"""Routing a command to the one who may execute it, or refusing it in the words of AEP-0004 §4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from handlers.aep.levels import JSONObject, JSONValue
from handlers.agents import KIMI_CODE, OURS
from handlers.claims import ClaimBook
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.errors import FrameRefused, InvalidState
from handlers.ingest import Posted
from handlers.lifecycle.reducer import UNKNOWN
from handlers.lifecycle.state import SessionState
from handlers.pairs import beside
from handlers.tokens import Principal, Right
from state.errors import StateError
from state.foreign import Foreign
from state.keys import Keys, SessionKey
from state.sessions import Record, Sessions

ACK_WINDOW_MS = 10_000
OWN = "own"
"""The target of a command that one of our own sessions takes."""

_DAY_MS = 86_400_000
_ROSTER_LIMIT = 1_000
_LOADS = 64


class OwnCommands(Protocol):
    """What takes commands to our own sessions."""

    def declaration(self) -> JSONObject:
        """`{"accepts": […], "ack_window_ms": …}` of every session of ours."""

    async def handle(self, principal: Principal, key: SessionKey, command: Posted) -> None:
        """Take a command that is authorised and has one claimant: us.

        The answer is an event on the session's stream; raises `FrameRefused` where it is a frame instead.
        """

    async def recall(self, keys: Sequence[SessionKey], command: Posted) -> bool:
        """Answer again a command to a session that has ended since, if it is known. Raises `StateError`."""


class NoCommands:
    """Sessions that can only be watched."""

    def declaration(self) -> JSONObject:
        return {"accepts": [], "ack_window_ms": ACK_WINDOW_MS}

    async def handle(self, principal: Principal, key: SessionKey, command: Posted) -> None:
        raise FrameRefused("unsupported", "sessions of this service take no commands", cause=command.id)

    async def recall(self, keys: Sequence[SessionKey], command: Posted) -> bool:
        return False


class OwnSessions:
    """Our own sessions as claims: those that have not ended and were active within a day."""

    def __init__(
        self,
        sessions: Sessions,
        keys: Keys,
        emitters: Callable[[], Iterable[str]],
        learn: Callable[[SessionKey, Record], None],
        *,
        clock: Clock,
    ) -> None:
        """`learn` is told where a session stands for which a command has come."""
        self._sessions = sessions
        self._keys = keys
        self._emitters = emitters
        self._learn = learn
        self._clock = clock

    async def claimed(self, session: str, scope: str | None) -> list[SessionKey]:
        """Whose live session of ours has this name, of those of the emitter `scope` or of all.

        More than one only on a shared service, for someone who sees all of it.

        One that can merely be watched does not compete with one that takes commands.
        """
        if session == UNKNOWN:
            return []
        for agent in OURS:
            keys = [SessionKey(emitter, session, agent) for emitter in self._within(scope)]
            found = await self._alive(keys, learn=True)
            if found:
                return found
        return []

    def names(self, session: str, scope: str | None) -> list[SessionKey]:
        """Every session of ours that could have this name."""
        return [SessionKey(emitter, session) for emitter in self._within(scope)]

    async def lives(self, key: SessionKey) -> bool:
        """Whether this very session is one of them. Raises `StateError`."""
        return key.session != UNKNOWN and bool(await self._alive([key], learn=True))

    async def live(self, scope: str | None) -> list[SessionKey]:
        """All of them that may be seen, the latest active first. Raises `StateError`."""
        since_ms = self._clock.now_ms() - _DAY_MS
        keys: list[SessionKey] = []
        for shard in range(self._keys.shards):
            keys += await self._active(shard, since_ms, scope)
        return await self._alive(keys)

    async def _active(self, shard: int, since_ms: int, scope: str | None) -> list[SessionKey]:
        """The latest active of a shard; how many others have does not push those of `scope` out."""
        found: list[SessionKey] = []
        offset = 0
        while len(found) < _ROSTER_LIMIT:
            page = await self._sessions.sessions(shard, since_ms=since_ms, limit=_ROSTER_LIMIT, offset=offset)
            found += [key for key in page if key.session != UNKNOWN and scope in (None, key.emitter)]
            offset += len(page)
            if len(page) < _ROSTER_LIMIT:
                break
        return found[:_ROSTER_LIMIT]

    def _within(self, scope: str | None) -> list[str]:
        return sorted(self._emitters()) if scope is None else [scope]

    async def _alive(self, keys: list[SessionKey], *, learn: bool = False) -> list[SessionKey]:
        found: list[SessionKey] = []
        for start in range(0, len(keys), _LOADS):
            part = keys[start : start + _LOADS]
            # A command nearly always has one to ask about, and waits for it.
            if len(part) == 1:
                records = [await self._sessions.load(part[0])]
            else:
                records = await asyncio.gather(*(self._sessions.load(key) for key in part))
            for key, record in zip(part, records, strict=True):
                # The tombstone says that it ended once; the state knows whether it was resumed.
                if record.state is not None and not _over(record.state):
                    found.append(key)
                    if learn:
                        self._learn(key, record)
        return found


class Router:
    """Finds the claimant of a command: a connection of any process, or one of our own sessions."""

    def __init__(
        self,
        book: ClaimBook,
        own: OwnSessions,
        own_commands: Callable[[], OwnCommands],
        foreign: Foreign,
        counters: Counters,
    ) -> None:
        self._book = book
        self._own = own
        self._own_commands = own_commands
        self._foreign = foreign
        self._counters = counters

    async def route(self, principal: Principal, command: Posted) -> None:
        """Hand `command` to its one claimant. Raises `FrameRefused` with the command's id as cause.

        A refused command goes nowhere; one that is routed is seen live by subscribers, from the feed.
        """
        try:
            await self._route(principal, command)
        except FrameRefused as refused:
            self._counters.add(f"commands.refused.{refused.code}")
            raise
        except StateError:
            self._counters.add("commands.refused.no-redis")
            raise FrameRefused("no-route", "Redis does not answer; try again", cause=command.id) from None
        self._counters.add("commands.routed")

    async def roster(self, principal: Principal) -> list[JSONValue]:
        """The entries of the roster (AEP-0003 §4.1) that `principal` may see. Raises `StateError`."""
        scope = principal.scope
        entries: list[JSONValue] = [
            {
                "session": key.session,
                "agent": key.agent,
                "instance": key.emitter,
                "control": self.declaration(key.agent),
            }
            for key in await self._own.live(scope)
        ]
        entries += [claim.entry for claim in await self._book.everywhere() if scope in (None, claim.emitter)]
        return entries

    async def take(self, principal: Principal, key: SessionKey, command: Posted) -> None:
        """A command that a relay has routed to our session `key`, whatever other claimants we know.

        Raises `FrameRefused` with the command's id as cause where the session cannot answer by itself.
        """
        try:
            if await self._own.lives(key):
                await self._hand(principal, key, command)
            elif not await self._own_commands().recall([key], command):
                raise FrameRefused("no-route", "this session is not there", cause=command.id)
        except FrameRefused as refused:
            self._counters.add(f"commands.refused.{refused.code}")
            raise
        except StateError:
            self._counters.add("commands.refused.no-redis")
            raise FrameRefused("busy", "Redis does not answer; try again", cause=command.id) from None
        self._counters.add("commands.relayed")

    def declaration(self, agent: str) -> JSONObject:
        """What the sessions of an agent of ours take."""
        taker = self._own_commands() if agent == KIMI_CODE else NoCommands()
        return taker.declaration()

    async def _hand(self, principal: Principal, key: SessionKey, command: Posted) -> None:
        # What takes commands at all says no by itself, on the session's own stream.
        if not self.declaration(key.agent).get("accepts"):
            kind = command.event["type"]
            raise FrameRefused("unsupported", f"{kind} is not accepted by this session", cause=command.id)
        # Shown first, and no trip of its own: what is decided follows on the same connection.
        shown, _ = await beside(
            self._foreign.command(key, pack(OWN, command.body)),
            self._own_commands().handle(principal, key, command),
        )
        if isinstance(shown, StateError):
            # It is decided all the same, and its acknowledgement names it.
            self._counters.add("commands.unseen")

    async def _route(self, principal: Principal, command: Posted) -> None:
        kind, session = str(command.event["type"]), command.session

        def refused(code: str, detail: str) -> FrameRefused:
            return FrameRefused(code, detail, cause=command.id)

        if not principal.authenticated:
            raise refused("unauthorized", "control needs an authenticated connection (AEP-0004 §4.1)")
        if not principal.may(Right.ANSWER if kind == "control.attention.respond" else Right.STEER):
            raise refused("unauthorized", f"this token does not allow {kind}")
        if session is None:
            raise refused("no-route", "a command names its session")
        scope = principal.scope
        everybody, own = await beside(self._book.everywhere(), self._own.claimed(session, scope))
        if isinstance(everybody, StateError):
            raise everybody
        claims = [claim for claim in everybody if claim.session == session and scope in (None, claim.emitter)]
        if not claims and not own:
            if await self._own_commands().recall(self._own.names(session, scope), command):
                return
            raise refused("no-route", "no connected emitter owns this session")
        if len(claims) + len(own) > 1:
            raise refused(
                "ambiguous", f"{len(claims) + len(own)} live claimants; none is guessed (AEP-0004 §4.5)"
            )
        if own:
            await self._hand(principal, own[0], command)
            return
        if kind not in claims[0].accepts:
            raise refused("unsupported", f"{kind} is not accepted by this session")
        await self._foreign.command(
            SessionKey(claims[0].emitter, session), pack(claims[0].connection, command.body)
        )


def pack(target: str, body: bytes) -> bytes:
    """A command on the feed: whom it is for (a connection, or `OWN`), and its bytes."""
    return target.encode() + b"\n" + body


def unpack(entry: bytes) -> tuple[str, bytes]:
    """The inverse of `pack`: target and command."""
    target, _, body = entry.partition(b"\n")
    return target.decode("ascii", "replace"), body


def _over(state: bytes) -> bool:
    try:
        return SessionState.decode(state).over
    except InvalidState:
        return False
