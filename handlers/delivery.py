"""One event on its way to consumers, and the bounded box in which a consumer's events wait.

An event is parsed once a process and rendered once a capture ceiling and binding, however many consumers
take it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

import orjson

from handlers.aep.canonical import parse
from handlers.aep.capture import downlevel
from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity
from handlers.framing import framed
from handlers.positions import event_id

Kind = Literal["own", "foreign", "command"]

Mark = tuple[str, tuple[str, int, int] | None]
"""Of a delivery: the subscription, and the session, epoch and seq where the event has them."""

_NOTICE = Severity.NOTICE.rank
_DEFAULT_LIMIT = 2_048
_DEFAULT_BYTES = 8 * 1024 * 1024


class Item:
    """A finished event: its bytes as stored, its envelope, and its renderings."""

    __slots__ = ("_bodies", "_frames", "_messages", "body", "emitter", "event", "kind", "place", "rank")

    def __init__(self, kind: Kind, body: bytes, event: JSONObject, emitter: str = "") -> None:
        self.kind = kind
        self.emitter = emitter
        self.body = body
        self.event = event
        severity = event.get("severity")
        known = isinstance(severity, str) and severity in _SEVERITIES
        self.rank = Severity(str(severity)).rank if known else Severity.INFO.rank
        self._bodies: dict[Capture, bytes] = {}
        self._frames: dict[bytes, bytes] = {}
        self._messages: dict[Capture | None, bytes] = {}
        session, position = self.session, self.position
        # Session, epoch and seq, where it has a position in a session: asked for by each consumer.
        self.place = (session, *position) if session is not None and position is not None else None

    @classmethod
    def parse(cls, kind: Kind, body: bytes, emitter: str = "") -> Item:
        """From the bytes of the feed or of a replay stream. Raises `ValueError` when they are no object.

        `emitter` is the one by whose token it came in, whatever the event itself says.
        """
        event: JSONValue
        try:
            event = orjson.loads(body)
        except orjson.JSONDecodeError:
            # Legal for JavaScript, and not for orjson: lone surrogates, huge numbers.
            event = parse(body)
        if not isinstance(event, dict):
            raise ValueError("an event is an object")
        return cls(kind, body, event, emitter)

    @property
    def session(self) -> str | None:
        session = self.event.get("session")
        return session if isinstance(session, str) else None

    @property
    def identity(self) -> tuple[str, str]:
        """`(source, id)`, the key of deduplication (AEP-0001 §7.4)."""
        return str(self.event.get("source")), str(self.event.get("id"))

    @property
    def position(self) -> tuple[int, int] | None:
        """`(epoch, seq)`, or None for what has no position."""
        seq, epoch = self.event.get("seq"), self.event.get("epoch", 0)
        if isinstance(seq, int) and isinstance(epoch, int):
            return epoch, seq
        return None

    def render(self, ceiling: Capture | None) -> bytes:
        """The event's JSON, at most at `ceiling` (AEP-0003 §6.4); as stored where that is low enough."""
        if ceiling is None:
            return self.body
        body = self._bodies.get(ceiling)
        if body is None:
            lowered = downlevel(self.event, ceiling)
            body = self.body if lowered == self.event else _dump(lowered)
            self._bodies[ceiling] = body
        return body

    def frame(self, ceiling: Capture | None) -> bytes:
        """The event as one text frame of a WebSocket; the same one where the rendering is the same."""
        body = self.render(ceiling)
        frame = self._frames.get(body)
        if frame is None:
            frame = self._frames[body] = framed(body)
        return frame

    def message(self, ceiling: Capture | None) -> bytes:
        """The event as one server-sent message (AEP-0003 §3.3.2)."""
        message = self._messages.get(ceiling)
        if message is None:
            parts = [b"event: ", str(self.event.get("type")).encode(), b"\ndata: ", self.render(ceiling)]
            if self.place is not None:
                identifier = event_id(*self.place)
                if identifier is not None:
                    parts += [b"\nid: ", identifier.encode()]
            parts.append(b"\n\n")
            message = self._messages[ceiling] = b"".join(parts)
        return message


_SEVERITIES = frozenset(Severity)


def _dump(event: JSONObject) -> bytes:
    try:
        return orjson.dumps(event)
    except (TypeError, ValueError):
        return json.dumps(event, ensure_ascii=True, separators=(",", ":")).encode()


class Outbox:
    """What waits for one consumer.

    When it is full, `debug` and `info` events are dropped, new ones and then waiting ones. When an event of
    `notice` or above finds no place even so, the box is `overrun`: its consumer must be let go, so that it
    comes back and resumes exactly (AEP-0003 §8.4).
    """

    __slots__ = (
        "_bytes",
        "_due",
        "_items",
        "_limit",
        "_limit_bytes",
        "_room",
        "_timer",
        "_wake",
        "closed",
        "dropped",
        "on_overrun",
        "overrun",
    )

    def __init__(self, limit: int = _DEFAULT_LIMIT, limit_bytes: int = _DEFAULT_BYTES) -> None:
        self._items: deque[tuple[int, bytes, Mark | None]] = deque()
        self._bytes = 0
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._wake: asyncio.Future[bool] | None = None
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.closed = False
        self.overrun = False
        self.on_overrun: Callable[[], None] | None = None
        self.dropped = 0

    def put(self, rank: int, payload: bytes, mark: Mark | None = None) -> None:
        """Add one rendered event, or drop something, or become overrun. `mark` comes out again with it."""
        if self.closed or self.overrun:
            return
        size = self._bytes + len(payload)
        if len(self._items) < self._limit and size <= self._limit_bytes:
            self._items.append((rank, payload, mark))
            self._bytes = size
            # Each event for each consumer comes by here.
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(True)
            return
        if rank < _NOTICE:
            self.dropped += 1
            return
        self._shed()
        if self._fits(payload):
            self._append(rank, payload, mark)
        else:
            self.overflow()

    def overflow(self) -> None:
        """Something that must not be lost has found no place."""
        self.overrun = True
        self._signal()
        if self.on_overrun is not None:
            self.on_overrun()

    def force(self, payload: bytes, mark: Mark | None = None) -> None:
        """Add something that is never dropped, whatever the bound, such as a control frame."""
        if not self.closed:
            self._append(Severity.CRITICAL.rank, payload, mark)

    def close(self) -> None:
        """No more will come; what waits can still be taken."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._signal()

    def take(self, limit_bytes: int = 65_536) -> list[bytes]:
        """What waits, oldest first, about `limit_bytes` of it."""
        return [entry[1] for entry in self.entries(limit_bytes)]

    def entries(self, limit_bytes: int = 65_536) -> Iterable[tuple[int, bytes, Mark | None]]:
        """The same with rank and mark."""
        taken: Iterable[tuple[int, bytes, Mark | None]]
        if self._bytes <= limit_bytes:
            taken, self._items, self._bytes = self._items, deque(), 0
        else:
            taken = []
            size = 0
            while size < limit_bytes:
                entry = self._items.popleft()
                size += len(entry[1])
                taken.append(entry)
            self._bytes -= size
        if self._room is not None and self._bytes < self._limit_bytes // 8 and not self._room.done():
            self._room.set_result(None)
        return taken

    async def room(self) -> None:
        """Wait until little waits, for a producer that should be no faster than the consumer."""
        while self._bytes >= self._limit_bytes // 8 and not (self.closed or self.overrun):
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    def __len__(self) -> int:
        return len(self._items)

    async def ready(self, seconds: float) -> bool:
        """Wait until something is there, or the box is closed or overrun; False after `seconds`."""
        if self._items or self.closed or self.overrun:
            return True
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        self._due = loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._watch(loop)
        try:
            return await self._wake
        finally:
            self._wake = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for many waits, since nearly all of them end before it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._due, self._late, loop)

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._wake is None or self._wake.done():
            return
        if loop.time() < self._due:
            self._watch(loop)
        else:
            self._wake.set_result(False)

    def _fits(self, payload: bytes) -> bool:
        return len(self._items) < self._limit and self._bytes + len(payload) <= self._limit_bytes

    def _shed(self) -> None:
        kept = deque(entry for entry in self._items if entry[0] >= _NOTICE)
        self.dropped += len(self._items) - len(kept)
        self._items = kept
        self._bytes = sum(len(entry[1]) for entry in kept)

    def _append(self, rank: int, payload: bytes, mark: Mark | None) -> None:
        self._items.append((rank, payload, mark))
        self._bytes += len(payload)
        self._signal()

    def _signal(self) -> None:
        if (self.closed or self.overrun) and self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(True)
