"""The state of sessions: read it, and commit one step of it together with the events of that step.

A commit is a compare-and-set. The version of a session is the id of its last commit, which is random, so
a state that came back from an older copy of the data can never be taken for the one that was read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from state import commits
from state.commits import COMMIT, Form
from state.connection import Client
from state.errors import LayoutMismatch, NotReplicated
from state.keys import LAYOUT, Keys, SessionKey
from state.link import Argument
from state.lua import Script
from state.records import (
    DAY_MS,
    HOUR_MS,
    MAX_EVENTS,
    MAX_STATE,
    Activity,
    Bounds,
    Committed,
    Conflict,
    Mark,
    Put,
    Record,
)

__all__ = [
    "DAY_MS",
    "HOUR_MS",
    "MAX_EVENTS",
    "MAX_STATE",
    "Activity",
    "Bounds",
    "Committed",
    "Conflict",
    "Mark",
    "Put",
    "Record",
    "Sessions",
]

_LOAD = Script("load")
_FORGET = Script("forget")


class Sessions:
    """Sessions under one set of keys. One per process; safe to use from many tasks."""

    def __init__(self, client: Client, keys: Keys, bounds: Bounds | None = None) -> None:
        self.client = client
        self.keys = keys
        self.bounds = bounds or Bounds()
        self._writer = os.urandom(6).hex()

    async def prepare(self) -> None:
        """Record the layout, or compare with what is recorded.

        Raises LayoutMismatch when another process laid this prefix out with another number of shards.
        """
        mine = f"{LAYOUT}:{self.keys.shards}"
        await self.client.call(self.keys.layout, "SET", self.keys.layout, mine, "NX", lane="read")
        found = await self.client.call(self.keys.layout, "GET", self.keys.layout, lane="read")
        text = (found or b"").decode()
        if text != mine:
            layout, _, shards = text.partition(":")
            raise LayoutMismatch(
                f"the data under prefix {self.keys.prefix!r} has layout {layout}, {shards or '?'} shards; "
                f"this process is set to layout {LAYOUT}, {self.keys.shards}: "
                "set AEP_SHARDS to the same number everywhere, or take another AEP_REDIS_PREFIX"
            )

    def commit_id(self) -> str:
        """A new random commit id of this process: 8 random bytes behind the process's own 6.

        Of each writer the last id is remembered, for up to 16 writers of one session.
        """
        return f"{self._writer}.{os.urandom(8).hex()}"

    async def load(self, key: SessionKey) -> Record:
        """Where the session stands."""
        keys = self.keys.session(key)
        reply = await self.client.script(_LOAD, (keys.record, keys.events, keys.tombstone), ())
        return _record(reply)

    async def commit(
        self,
        key: SessionKey,
        *,
        expected: str,
        commit_id: str,
        state: bytes,
        events: Sequence[tuple[int, bytes]],
        now_ms: int,
        due_ms: int | None = None,
        ended: bool = False,
        puts: Sequence[Put | Mark] = (),
        notice: bytes = b"",
    ) -> Committed | Conflict:
        """Store `state` and append `events` (position, finished bytes) if the session stands at `expected`.

        Positions must rise, and lie above the record's top, or it is a conflict. A `commit_id` that was
        applied before is answered Committed and changes nothing, so after Unanswered the same call may be
        repeated. `due_ms` is when the session wants a tick. `notice` travels the feed with the events, or
        alone, to wake whoever waits in another process.

        Raises Unreachable, Unanswered, Refused, NotReplicated; ValueError for more than `MAX_EVENTS` events
        or a state above `MAX_STATE` bytes.
        """
        if len(events) > MAX_EVENTS or len(state) > MAX_STATE:
            raise ValueError(f"a commit of {len(events)} events and {len(state)} bytes of state is too large")
        keys = self.keys.session(key)
        names = [*commits.names(keys)]
        arguments: list[Argument] = [
            *commits.bounds_of(keys, self.bounds),
            expected,
            commit_id,
            state,
            now_ms,
            "" if due_ms is None else due_ms,
            1 if ended else 0,
            notice,
            len(puts),
        ]
        for put in puts:
            if isinstance(put, Put):
                names.append(keys.put(put.name))
                arguments += [_text(put.name), put.value, put.keep_ms, 1 if put.once else 0]
            else:
                names.append(keys.gates)
                arguments += [_text(put.name), put.value or b"", put.keep_ms, 3 if put.value is None else 2]
        for position, body in events:
            arguments += [position, body]
        try:
            reply = await self.client.script(COMMIT, names, arguments, durable=True)
        except NotReplicated as error:
            reply = error.reply
            # A conflict wrote nothing, so there is nothing that replicas could confirm.
            if not isinstance(reply, list) or reply[0] == 1:
                raise
        if reply[0] == 1:
            return Committed(commit_id, again=reply[1] == 1)
        return self.conflict(reply)

    def form(self, key: SessionKey) -> Form:
        """What all commits of a session have in common; kept by who commits there often."""
        return commits.form(self.keys.session(key), self.bounds)

    def start(
        self,
        form: Form,
        *,
        expected: str,
        commit_id: str,
        state: bytes,
        events: Sequence[tuple[int, bytes]],
        now_ms: int,
        due_ms: int | None,
        ended: bool,
    ) -> asyncio.Future[list[Any]] | None:
        """A plain commit, sent at once on a connection that stands; None where `commit` is to be called.

        The future ends within the client's write limit. The reply `[1, …]` is Committed, another one is for
        `conflict`; after an error, `commit` with the same id says what became of it.
        """
        if len(events) > MAX_EVENTS or len(state) > MAX_STATE:
            return None
        packed = commits.pack(form, expected, commit_id, state, now_ms, due_ms, ended, events)
        return self.client.start(form.key, packed)

    def conflict(self, reply: Sequence[Any]) -> Conflict:
        """What the script says where it commits nothing."""
        taken = {reply[i].decode("utf-8", "surrogatepass"): reply[i + 1] for i in range(5, len(reply), 2)}
        return Conflict(_record(reply[1:5]), taken)

    async def put(self, key: SessionKey, put: Put) -> bytes | None:
        """Write a side value alone. With `once`, returns what was there instead, and then writes nothing."""
        name = self.keys.session(key).put(put.name)
        command: list[Argument] = ["SET", name, put.value, "PX", put.keep_ms]
        if not put.once:
            await self.client.call(name, *command)
            return None
        while True:
            if await self.client.call(name, *command, "NX") is not None:
                return None
            found: bytes | None = await self.client.call(name, "GET", name)
            if found is not None:
                return found

    async def get(self, key: SessionKey, name: str) -> bytes | None:
        """A side value, or None."""
        at = self.keys.session(key).put(name)
        found: bytes | None = await self.client.call(at, "GET", at)
        return found

    async def due(self, shard: int, now_ms: int, limit: int = 100) -> list[SessionKey]:
        """Sessions of a shard whose due time has come, the longest overdue first."""
        at = self.keys.shard(shard, "due")
        found = await self.client.call(
            at, "ZRANGEBYSCORE", at, "-inf", now_ms, "LIMIT", 0, limit, lane="read"
        )
        return [SessionKey.parse(name) for name in found]

    async def forget_due(self, key: SessionKey, now_ms: int) -> bool:
        """Take an overdue session off the due list when its state is gone; True if it was taken off."""
        keys = self.keys.session(key)
        return bool(await self.client.script(_FORGET, (keys.record, keys.due), (keys.name, now_ms)))

    async def sessions(
        self,
        shard: int,
        *,
        since_ms: int = 0,
        limit: int = 1000,
        offset: int = 0,
    ) -> list[SessionKey]:
        """Sessions of a shard by last activity, newest first, that were active at `since_ms` or later."""
        return [
            entry.key for entry in await self.activity(shard, since_ms=since_ms, limit=limit, offset=offset)
        ]

    async def activity(
        self, shard: int, *, since_ms: int = 0, limit: int = 1000, offset: int = 0
    ) -> list[Activity]:
        """The same with the time of each one's last commit."""
        at = self.keys.shard(shard, "index")
        command = ("ZREVRANGEBYSCORE", at, "+inf", since_ms, "WITHSCORES", "LIMIT", offset, limit)
        found = await self.client.call(at, *command, lane="read")
        return [
            Activity(SessionKey.parse(found[i]), int(float(found[i + 1]))) for i in range(0, len(found), 2)
        ]

    async def count(self, shard: int) -> int:
        """How many sessions the index of a shard holds."""
        at = self.keys.shard(shard, "index")
        return int(await self.client.call(at, "ZCARD", at, lane="read"))


def _record(reply: Sequence[Any]) -> Record:
    version, state, top, ended = reply
    return Record(
        state=state if version else None,
        version=version.decode(),
        top=int(top),
        ended=bool(ended),
    )


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
