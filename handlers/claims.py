"""Who is connected and speaks for which session: the claims behind the roster and command routing.

A claim is a pair of a connection and a session (AEP-0003 §4.1). The connections of a process are known here;
those of all processes are in Redis, each for as long as its process keeps saying so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from dataclasses import dataclass
from typing import Protocol

import orjson

from handlers.aep.frames import Hello
from handlers.aep.levels import JSONObject
from handlers.clock import Clock
from state.claims import Claims
from state.errors import StateError

log = logging.getLogger(__name__)

TTL_MS = 12_000
_SAY_SECONDS = 4.0
_MOST = 10_000


class Target(Protocol):
    """A connection that takes commands."""

    def command(self, body: bytes) -> None:
        """Hand over a command, byte for byte."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One live claim. `connection` names it across processes; only its own process can deliver there."""

    connection: str
    emitter: str
    session: str
    entry: JSONObject
    """The roster entry: what the connection declared, verbatim."""

    @property
    def accepts(self) -> frozenset[str]:
        control = self.entry.get("control")
        listed = control.get("accepts") if isinstance(control, dict) else None
        return (
            frozenset(word for word in listed if isinstance(word, str))
            if isinstance(listed, list)
            else frozenset()
        )


def roster_entry(session: str, hello: Hello) -> JSONObject:
    """AEP-0003 §4.1 rule 4: what was declared and nothing else."""
    entry: JSONObject = {"session": session}
    if hello.agent is not None:
        entry["agent"] = hello.agent
    if hello.instance is not None:
        entry["instance"] = hello.instance
    if hello.control is not None:
        entry["control"] = hello.control
    if hello.emits is not None:
        entry["emits"] = hello.emits
    return entry


class ClaimBook:
    """The claims of this process's connections."""

    def __init__(self, claims: Claims, clock: Clock) -> None:
        self._claims = claims
        self._clock = clock
        self._numbers = itertools.count(1)
        self._targets: dict[str, Target] = {}
        self._mine: dict[str, bytes] = {}

    @property
    def held(self) -> bool:
        """Whether a connection of this process has claimed anything."""
        return bool(self._mine)

    def connection(self, target: Target) -> str:
        """A name for a new connection, under which it can be reached from any process."""
        name = f"{self._claims.process}.{next(self._numbers)}"
        self._targets[name] = target
        return name

    async def claim(self, connection: str, emitter: str, session: str, hello: Hello) -> None:
        """The connection speaks for `session`. Repeating is cheap; Redis being away is made up for later."""
        place = _place(connection, session)
        if place in self._mine or len(self._mine) >= _MOST:
            return
        value = orjson.dumps({"emitter": emitter, "session": session, "entry": roster_entry(session, hello)})
        self._mine[place] = value
        try:
            await self._claims.add({place: value}, now_ms=self._clock.now_ms(), ttl_ms=TTL_MS)
        except StateError as error:
            log.debug("a claim will be told later: %s", error)

    async def release(self, connection: str) -> None:
        """The connection is gone, and its claims with it."""
        self._targets.pop(connection, None)
        places = [place for place in self._mine if place.startswith(f"{connection}/")]
        for place in places:
            del self._mine[place]
        try:
            if places:
                await self._claims.remove(places)
        except StateError as error:
            log.debug("claims will be withdrawn later: %s", error)

    def deliver(self, connection: str, session: str, body: bytes) -> bool:
        """Hand a command to a connection, if it is one of ours and still claims the session."""
        target = self._targets.get(connection)
        if target is None or _place(connection, session) not in self._mine:
            return False
        target.command(body)
        return True

    async def everywhere(self) -> list[Claim]:
        """Every live claim of every process. Raises `StateError`."""
        found = []
        for _, place, value in await self._claims.everywhere():
            try:
                said = orjson.loads(value)
                connection = place.partition("/")[0]
                found.append(Claim(connection, said["emitter"], said["session"], said["entry"]))
            except (ValueError, KeyError, TypeError):
                log.warning("a claim of another process cannot be read")
        return found

    async def run(self) -> None:
        """Say again what is claimed, until cancelled; what Redis has lost or missed is told anew."""
        said = False
        while True:
            await asyncio.sleep(_SAY_SECONDS)
            if not self._mine and not said:
                continue
            try:
                await self._claims.replace(self._mine, now_ms=self._clock.now_ms(), ttl_ms=TTL_MS)
                said = bool(self._mine)
            except StateError as error:
                log.debug("claims could not be told: %s", error)


def _place(connection: str, session: str) -> str:
    return f"{connection}/{session}"


def process_name() -> str:
    """A name that no other process has."""
    return os.urandom(8).hex()
