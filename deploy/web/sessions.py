"""The sessions of one connection: subscribe to each from where the service stands, and pass its frames on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from deploy.web import writes
from deploy.web.errors import RestError, ServiceAway
from deploy.web.outbox import Outbox
from deploy.web.rest import Rest
from deploy.web.sequence import Sequence

JSON = dict[str, Any]

GLOBAL = "__global__"
REWOUND = "rewound"
_AT_ONCE = 50
_PAUSE_SECONDS = 0.5
_YOUNG_SECONDS = 24 * 3_600.0
_PATIENCE = 3
_MOST = 2_000


@dataclass(slots=True)
class Figures:
    """What can be told of one server."""

    state: str = "new"
    frames: int = 0
    garbage: int = 0
    gaps: int = 0
    resyncs: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """A session as it was listed, and where its frames stood then."""

    changed: str
    stands: int | None
    suspect: bool = False


@dataclass(slots=True)
class Known:
    """A session as this connection knows it."""

    sequence: Sequence = field(default_factory=Sequence)
    loaded: bool = False
    """The server has it loaded."""
    live: bool = False
    """Its frames flow, and none is missing."""
    tries: int = 0
    stuck_at: int | None = None
    deciding: set[str] = field(default_factory=set)
    """What we are about to do there: the server's news of it waits for its answer to us."""
    held: list[tuple[str | None, bytes]] = field(default_factory=list)
    snapshot: tuple[int, bytes] | None = None
    """What is to be told behind the frame of that number."""
    last: tuple[int, str] | None = None
    """Number and time of the last frame that the service took, until the server has shown it again."""


class Sessions:
    """Keeps every live session subscribed. `request` sends a frame and returns the acknowledgement."""

    def __init__(
        self,
        rest: Rest,
        outbox: Outbox,
        figures: Figures,
        request: Callable[[str, JSON], Awaitable[JSON]],
    ) -> None:
        self.told = False
        """Whether this server sends some frames without a subscription."""
        self._rest = rest
        self._outbox = outbox
        self._figures = figures
        self._request = request
        self._known: dict[str, Known] = {}
        self._created: dict[str, str] = {}
        self._listed: dict[str, Listed] = {}
        self._wanted: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._resync: dict[str, str] = {}
        self._oversized: set[str] = set()

    @property
    def loaded(self) -> list[str]:
        """The sessions that the server has loaded."""
        return [name for name, known in self._known.items() if known.loaded]

    @property
    def live(self) -> list[str]:
        """Those whose frames flow without a gap."""
        return [name for name, known in self._known.items() if known.live]

    def listed(self, items: Iterable[JSON]) -> None:
        """Want every session that is new here, or has changed since the server said it was not loaded.

        One that changed while none of its frames came, and none come until it is listed again, is no longer
        subscribed to.
        """
        for item in items:
            name, created = item.get("id"), item.get("created_at")
            if not isinstance(name, str):
                continue
            if isinstance(created, str):
                self._created[name] = created
            known = self._known.get(name)
            stands = None if known is None else known.sequence.seq
            changed = f"{item.get('updated_at')} {item.get('busy')}"
            before = self._listed.get(name)
            if before is None:
                self._listed[name] = Listed(changed, stands)
                self._want(name)
                continue
            silent = before.stands in (None, stands)
            if known is None:
                if changed != before.changed:
                    self._want(name)
            elif silent and before.suspect:
                self._want(name)
            suspect = known is not None and silent and changed != before.changed
            self._listed[name] = Listed(changed, stands, suspect)
        for forgotten in list(self._listed)[: max(0, len(self._listed) - _MOST)]:
            del self._listed[forgotten]
            self._created.pop(forgotten, None)

    def resync_required(self, body: JSON) -> None:
        """The server cannot send what was missed."""
        name, reason = body.get("session_id"), body.get("reason")
        known = self._known.get(name) if isinstance(name, str) else None
        if known is not None and isinstance(name, str):
            self._resync[name] = reason if isinstance(reason, str) else "resync_required"
            if not known.sequence.waiting:
                self._want(name)

    def take(self, kind: str, frame: JSON, body: JSON, raw: bytes) -> None:
        """A durable frame finds its session."""
        name, seq, epoch = frame.get("session_id"), frame.get("seq"), frame.get("epoch")
        if not isinstance(name, str) or not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
            self._figures.garbage += 1
            return
        if name == GLOBAL:
            about = body.get("sessionId")
            self._pass(about if isinstance(about, str) else GLOBAL, raw)
            if kind == "event.session.archived" and isinstance(about, str):
                self._known.pop(about, None)
            return
        known = self._known.get(name)
        if known is None:
            # The rest of its frames comes with a subscription, and this one again.
            self.told = True
            self._want(name)
            return
        ready = known.sequence.take(epoch if isinstance(epoch, str) else None, seq, raw)
        if known.last is not None and seq == known.last[0]:
            if frame.get("timestamp") != known.last[1]:
                self._rewound(name, known)
                return
            known.last, ready = None, ready[1:]
        self._forward(name, known, ready)
        if known.sequence.broken and known.live:
            self._figures.gaps += 1
            known.live = False
            self._want(name)

    def _rewound(self, name: str, known: Known) -> None:
        """The server gave that number twice: killed before its journal had the first (kimi-code 2.1.0)."""
        known.last = None
        known.sequence.again(None, None)
        self._resync[name] = REWOUND

    async def follow(self) -> None:
        """Subscribe to whatever is wanted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            names = list(self._wanted)[:_AT_ONCE]
            for name in names:
                del self._wanted[name]
            if self._wanted:
                self._wake.set()
            if names:
                await self._subscribe(names)

    async def write(self, write: JSON) -> None:
        """Do one thing that the service wants, and tell it what came of it before the server does."""
        name, about = str(write.get("session")), writes.subject(write)
        known = self._known.get(name)
        if known is not None:
            known.deciding.add(about)
        outcome, code = await writes.carry_out(self._rest, write)
        line = {"link": "result", "id": write.get("id"), "session_id": name, "outcome": outcome}
        self._outbox.tell(line | ({"code": code} if code else {}))
        if known is not None:
            known.deciding.discard(about)
            self._release(name, known)

    def forget(self, *, oversized: bool) -> None:
        """The connection is over: nothing that it knew holds any more. A frame may have been too large."""
        if oversized:
            self._oversized |= self._known.keys()
        for known in self._known.values():
            for _, raw in known.held:
                self._outbox.put(raw)
        for table in (self._known, self._wanted, self._resync, self._listed):
            table.clear()
        self._wake.clear()
        self.told = False

    def _want(self, name: str) -> None:
        if len(self._wanted) < _MOST:
            self._wanted[name] = None
            self._wake.set()

    def _forward(self, name: str, known: Known, ready: list[bytes]) -> None:
        """Frames in their order, the last of them the one where the sequence stands."""
        for left, raw in zip(range(len(ready) - 1, -1, -1), ready, strict=True):
            about = writes.announces(raw) if known.deciding else None
            if known.held or (about is not None and about in known.deciding):
                known.held.append((about, raw))
            else:
                self._pass(name, raw)
            self._insert(name, known, (known.sequence.seq or 0) - left)

    def _insert(self, name: str, known: Known, seq: int) -> None:
        """Tell the snapshot that stands at `seq`."""
        if known.snapshot is None or seq < known.snapshot[0]:
            return
        (_, line), known.snapshot = known.snapshot, None
        if known.held:
            known.held.append((None, line))
        else:
            self._pass(name, line)

    def _release(self, name: str, known: Known) -> None:
        """What was held for the sake of a write goes on, up to one that is still under way."""
        waiting, known.held = known.held, []
        for place, (about, raw) in enumerate(waiting):
            if about in known.deciding:
                known.held = waiting[place:]
                return
            self._pass(name, raw)

    def _pass(self, name: str, raw: bytes) -> None:
        self._figures.frames += 1
        known = self._known.get(name)
        if known is not None and known.sequence.halted:
            return
        line = raw if b"\n" not in raw else orjson.dumps(orjson.loads(raw))
        if not self._outbox.put(line) and known is not None:
            self._halt(name, known)

    def _halt(self, name: str, known: Known) -> None:
        """It all comes again, from where the service stands, when that takes frames."""
        known.live = False
        known.sequence.halt()
        self._want(name)

    async def _subscribe(self, names: list[str]) -> None:
        try:
            if not self._outbox.roomy:
                raise ServiceAway
            stored = await self._outbox.cursors(names)
        except ServiceAway:
            # The frames wait at the server; so do we.
            await asyncio.sleep(_PAUSE_SECONDS)
            for name in names:
                self._want(name)
            return
        cursors: JSON = {}
        for name in names:
            known = self._known.setdefault(name, Known())
            known.snapshot, sequence = None, known.sequence
            known.last = await self._place(name, sequence, stored.get(name))
            if sequence.seq is not None:
                cursors[name] = {"seq": sequence.seq}
                if sequence.epoch is not None:
                    cursors[name]["epoch"] = sequence.epoch
        ack = await self._request("subscribe", {"session_ids": names, "cursors": cursors})
        accepted = _names(ack.get("accepted"))
        for name in _names(ack.get("resync_required")):
            self._resync.setdefault(name, "resync_required")
        stands = ack.get("cursors")
        for name in names:
            if name in accepted:
                at = stands.get(name) if isinstance(stands, dict) else None
                await self._accepted(name, at if isinstance(at, dict) else {}, stored.get(name))
            else:
                self._known.pop(name, None)
                self._resync.pop(name, None)
        self._outbox.tell({"link": "claim", "ids": [name for name in names if name in accepted]})

    async def _place(self, name: str, sequence: Sequence, stored: JSON | None) -> tuple[int, str] | None:
        """From where on the session is asked for: from the last frame that the service took, to know it.

        The answer is that frame's number and time, None where it is not asked for.
        """
        if name in self._oversized:
            # Asked for again, the frame that is too large would only come again.
            self._oversized.discard(name)
            self._resync[name] = "oversized"
            sequence.again(None, None)
        elif stored is not None and isinstance(stored.get("seq"), int):
            epoch, seq, stamp = stored.get("epoch"), stored["seq"], stored.get("stamp")
            last = (seq, stamp) if isinstance(stamp, str) and seq > 0 else None
            sequence.again(None if epoch == "-" else epoch, seq - 1 if last else seq)
            return last
        else:
            sequence.again(None, 0 if await self._young(name) else None)
        return None

    async def _accepted(self, name: str, at: JSON, stored: JSON | None) -> None:
        """The server sends this session's frames from now on; what it could not send, a snapshot tells."""
        known = self._known.get(name)
        if known is None:
            return
        known.loaded = True
        if known.sequence.halted:
            return
        seq = at.get("seq")
        same = stored is not None and at.get("epoch") == stored.get("epoch")
        if same and known.last is not None and isinstance(seq, int) and seq < known.last[0]:
            self._rewound(name, known)
        reason = self._resync.pop(name, None)
        if known.last is not None and reason is not None:
            known.sequence.seq = known.last[0]
        known.last = None
        if reason is None and known.sequence.seq is not None:
            ready = known.sequence.acknowledged(at.get("epoch"), seq if isinstance(seq, int) else None)
            self._forward(name, known, ready)
            if known.sequence.broken:
                known.tries = known.tries + 1 if known.stuck_at == known.sequence.seq else 1
                known.stuck_at = known.sequence.seq
                if known.tries < _PATIENCE:
                    self._want(name)
                    return
                reason = "gap"
            elif stored is None or not stored.get("open"):
                known.live, known.tries = True, 0
                return
        await self._snapshot(name, known, reason, stored or {})

    async def _snapshot(self, name: str, known: Known, reason: str | None, stored: JSON) -> None:
        known.sequence.pause()
        try:
            line = await self._rest.snapshot(name)
        except RestError:
            line = {}
        seq, epoch = line.get("seq"), line.get("epoch")
        if not isinstance(seq, int) or isinstance(seq, bool) or not isinstance(epoch, str | None):
            self._known.pop(name, None)
            return
        stood = known.sequence
        if self._known.get(name) is not known or stood.halted:
            return
        if reason is None and stood.seq is not None and stood.epoch == epoch:
            # Nothing was missed: the frames up to there are here, or on their way.
            known.snapshot = (seq, orjson.dumps(line))
            self._insert(name, known, stood.seq)
            self._forward(name, known, stood.resume())
        else:
            if reason is not None:
                self._figures.resyncs += 1
                line["reason"] = reason
                if reason == REWOUND and epoch == stored.get("epoch"):
                    line["rewound"] = stored.get("stamp")
                elif stood.epoch == epoch and stood.seq is not None:
                    line["missed"] = max(0, seq - stood.seq)
            known.snapshot = None
            if not self._outbox.put(orjson.dumps(line)):
                self._halt(name, known)
                return
            self._forward(name, known, stood.start(epoch, seq))
        known.live, known.tries = not stood.broken, 0
        if stood.broken:
            self._want(name)

    async def _young(self, name: str) -> bool:
        """Whether a session that the service does not know began so lately that all of it is of interest."""
        began = self._created.get(name)
        if began is None:
            try:
                began = str((await self._rest.session(name)).get("created_at"))
            except RestError:
                return False
        try:
            return time.time() - datetime.fromisoformat(began).timestamp() < _YOUNG_SECONDS
        except ValueError:
            return False


def _names(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
