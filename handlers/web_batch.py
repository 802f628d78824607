"""A batch of a web link, read: what happened to each session, in order, and what else the link says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from handlers.aep.canonical import parse
from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.errors import InvalidJSON
from handlers.lifecycle.names import turn_of
from handlers.lifecycle.reducer import Claim, Done, Happening, Placed, Resync, Tick
from handlers.mapping.fields import count, flag, table, text, token
from handlers.mapping.moments import Moment
from handlers.mapping.web import GLOBAL_SESSION, Mode, map_frame, session_of
from handlers.mapping.web_asks import offered

CHANNEL = "web"
_GLOBAL = "webg"
MOST_SESSIONS = 1_000
_MOST_ASKS = 16
_CHUNK = 100
_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One line for one session, and how many bytes it has."""

    happening: Happening
    size: int


@dataclass(slots=True)
class Batch:
    """`sessions` in the order of their first line, `wanted` those whose cursors are asked for."""

    sessions: dict[str, list[Entry]] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    skipped: int = 0
    empty: bool = True


@dataclass(frozen=True, slots=True)
class Reader:
    """How lines are read: the mode of the channel, the capture, whose they are.

    `offers`: approvals are told with a way to answer them.
    """

    mode: Mode
    posture: Posture
    link: str | None = None
    offers: bool = False

    def read(self, body: bytes) -> Batch:
        """The lines of a body. One that makes no sense is counted: a server must not stop a link."""
        batch = Batch()
        for line in body.split(b"\n"):
            if not line.strip():
                continue
            batch.empty = False
            try:
                value = parse(line)
            except InvalidJSON:
                value = None
            if not isinstance(value, dict):
                batch.skipped += 1
            elif "link" in value and "type" not in value:
                self._own(batch, value, len(line))
            else:
                self._frame(batch, value, len(line))
        return batch

    def _frame(self, batch: Batch, frame: JSONObject, size: int) -> None:
        moment = self._map(frame)
        seq = None if frame.get("volatile") else count(frame.get("seq"))
        if seq is None:
            if moment is not None:
                _add(batch, moment.session, moment, size)
            return
        # Numbered by the vendor apart from the sessions that they are about.
        channel = _GLOBAL if frame.get("session_id") == GLOBAL_SESSION else CHANNEL
        stream = _stream(channel, frame.get("epoch"))
        stamp = text(frame.get("timestamp")) if channel == CHANNEL else None
        happening = Tick() if moment is None else moment
        _add(batch, session_of(frame), Placed(happening, stream, seq, stamp), size)

    def _map(self, frame: JSONObject) -> Moment | None:
        moment = map_frame(frame, self.mode, self.posture)
        return offered(moment) if moment is not None and self.offers else moment

    def _own(self, batch: Batch, line: JSONObject, size: int) -> None:
        kind, session = line["link"], text(line.get("session_id"))
        if kind == "sessions":
            batch.wanted += _ids(line)
        elif kind == "claim":
            if self.link is not None:
                for claimed in _ids(line):
                    _add(batch, claimed, Claim(self.link), size)
        elif kind == "snapshot" and session is not None and (resync := self._resync(line)) is not None:
            _add(batch, session, resync, size)
        elif kind == "result" and session is not None:
            _add(batch, session, Done(text(line.get("id")) or "", token(line.get("outcome")) or ""), size)
        else:
            batch.skipped += 1

    def _resync(self, line: JSONObject) -> Resync | None:
        seq = count(line.get("seq"))
        if seq is None:
            return None
        asks = [
            *self._asks(line, "approval", line.get("approvals")),
            *self._asks(line, "question", line.get("questions")),
        ]
        return Resync(
            stream=_stream(CHANNEL, line.get("epoch")),
            number=seq,
            turn=turn_of(count(line.get("turn"))),
            running=flag(line.get("running")) is True,
            asks=tuple(asks),
            reason=token(line.get("reason")),
            missed=count(line.get("missed")),
            rewound=text(line.get("rewound")),
            primary=self.mode == "primary",
            bare=self.posture.level("run.started") is Capture.NONE,
        )

    def _asks(self, line: JSONObject, kind: str, items: JSONValue) -> list[Moment]:
        """Pending requests, as if their frames had come."""
        asks: list[Moment] = []
        for item in items[:_MOST_ASKS] if isinstance(items, list) else []:
            payload: JSONObject = {"agentId": table(item).get("agent_id"), **table(item)}
            if text(payload.get(f"{kind}_id")) is None:
                continue
            frame: JSONObject = {
                "type": f"event.{kind}.requested",
                "session_id": line["session_id"],
                "timestamp": payload.get("created_at"),
                "payload": payload,
            }
            moment = self._map(frame)
            if moment is not None:
                asks.append(moment)
        return asks


def chunks(entries: Sequence[Entry]) -> list[list[Happening]]:
    """Entries in parts that one commit can carry."""
    parts: list[list[Happening]] = []
    size = 0
    for entry in entries:
        if not parts or len(parts[-1]) >= _CHUNK or size + entry.size > _CHUNK_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(entry.happening)
        size += entry.size
    return parts


def _stream(channel: str, epoch: JSONValue) -> str:
    return f"{channel}.{text(epoch) or '-'}"


def _ids(line: JSONObject) -> list[str]:
    ids = line.get("ids")
    return (
        [one for one in ids if isinstance(one, str) and one][:MOST_SESSIONS] if isinstance(ids, list) else []
    )


def _add(batch: Batch, session: str, happening: Happening, size: int) -> None:
    batch.sessions.setdefault(session, []).append(Entry(happening, size))
