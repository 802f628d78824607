"""What other emitters hand to us: checked, told apart, admitted to Redis as received (AEP-0003 §3.2, §5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject, JSONValue
from handlers.aep.validation import check_event
from handlers.agents import OURS
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.errors import InvalidEvent, InvalidJSON
from handlers.tokens import Principal
from state.foreign import Foreign, Position
from state.keys import SessionKey

_COMMAND = re.compile(r"control\.(?!(?:accepted|rejected)$)|x\.[a-z0-9_-]+\.control\.")
_BREAKS = str.maketrans({"\n": " ", "\r": " "})
_MOST = 2**53
_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Posted:
    """A checked event of somebody else. `position` is None for what is seen live and never replayed."""

    body: bytes
    event: JSONObject
    id: str
    source: str
    session: str | None
    position: Position | None

    @property
    def is_command(self) -> bool:
        return is_command(str(self.event["type"]))


def is_command(event_type: str) -> bool:
    """Whether a type is that of a command and not of its answer (AEP-0004 §2, §3)."""
    return _COMMAND.match(event_type) is not None


class Ingest:
    """Admission of events that have an emitter of their own."""

    def __init__(
        self, foreign: Foreign, emitters: Callable[[], Iterable[str]], *, clock: Clock, counters: Counters
    ) -> None:
        self._foreign = foreign
        self._emitters = emitters
        self._clock = clock
        self._counters = counters

    def read(self, body: bytes) -> Posted:
        """Parse and check one event's bytes. Raises `InvalidEvent`."""
        try:
            body.decode("utf-8")
            value = parse(body)
        except (InvalidJSON, UnicodeDecodeError) as error:
            raise InvalidEvent(f"not JSON: {error}") from None
        return self.check(value, body)

    def check(self, value: JSONValue, body: bytes) -> Posted:
        """The same for an event that was parsed already."""
        # A payload may be newer than our schemas: only the envelope decides.
        for problem in check_event(value):
            if not problem.path.startswith("data."):
                raise InvalidEvent(str(problem))
        assert isinstance(value, dict)
        event_type, session, seq = str(value["type"]), value.get("session"), value.get("seq")
        source, epoch = str(value["source"]), value.get("epoch", 0)
        if self._is_ours(source):
            raise InvalidEvent("its source is one of this service", "forbidden-source")
        position: Position | None = None
        if isinstance(seq, int) and isinstance(epoch, int) and isinstance(session, str):
            if seq >= _MOST or epoch >= _MOST:
                raise InvalidEvent("a position is below 2^53")
            position = (epoch, seq)
        if is_command(event_type) and position is not None:
            raise InvalidEvent("a command has no seq (AEP-0004 §2.2)")
        if b"\n" in body or b"\r" in body:
            # Between the tokens of a JSON text a line break is a blank; a stream needs it on one line.
            body = body.decode().translate(_BREAKS).encode()
        return Posted(
            body=body,
            event=value,
            id=str(value["id"]),
            source=source,
            session=session if isinstance(session, str) else None,
            position=position,
        )

    async def admit(self, principal: Principal, posted: Sequence[Posted]) -> int:
        """Pass events on in their order; how many are new. Raises `StateError`."""
        new = 0
        for start in range(0, len(posted), _TOGETHER):
            group = posted[start : start + _TOGETHER]
            if start == 0 and len(group) > 1:
                # Alone, so that the scripts are known to the server and the rest cannot overtake each other.
                new += await self._one(principal, group[0])
                group = group[1:]
            new += sum(await asyncio.gather(*(self._one(principal, entry) for entry in group)))
        self._counters.add("posted.events", len(posted))
        self._counters.add("posted.known", len(posted) - new)
        return new

    async def _one(self, principal: Principal, posted: Posted) -> bool:
        key = SessionKey(principal.emitter, posted.session or "")
        if posted.position is None:
            await self._foreign.pass_on(key, posted.body)
            return True
        return await self._foreign.admit(
            key, posted.source, posted.id, posted.position, posted.body, now_ms=self._clock.now_ms()
        )

    def _is_ours(self, source: str) -> bool:
        """Whether a source names one of our sessions, however it is spelled (RFC 3986 §6.2.2)."""
        try:
            parts = urlsplit(source)
            host = unquote(parts.hostname or "").lower()
        except ValueError:
            return source[:4].lower() == "aep:"
        if parts.scheme != "aep" or host not in {name.lower() for name in self._emitters()}:
            return False
        return tuple(unquote(parts.path).lower().split("/")[1:3]) in {("agent", agent) for agent in OURS}
