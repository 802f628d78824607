"""`POST /frames/web`: ordered batches of a link's `kimi web` frames, each taken once.

The body is NDJSON. A line is a frame of the vendor's as received, or one of the link's own:

    {"link": "sessions", "ids": […]}       whose cursors the answer tells, and whose writes the link can do
    {"link": "snapshot", "session_id": …}  where a session stands, after frames that cannot be had any more

`?mode=` is how frames are read (default `AEP_KIMI_WEB_MODE`), `?wait_ms=` how long an answer may be held back
for something to do. The answer has `cursors` (session → `{"epoch", "seq"}`, the last frame taken) and
`writes`. Without a line it tells the cursors of every session of the emitter that was active within a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from handlers.aep.canonical import parse
from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.auth import media_type
from handlers.body import read_body
from handlers.client import Client
from handlers.errors import InvalidJSON, InvalidState, Refused
from handlers.lifecycle import cursors
from handlers.lifecycle.reducer import Happening, Placed, Resync, Tick
from handlers.lifecycle.state import SessionState, turn_of
from handlers.mapping.fields import count, flag, table, text, token
from handlers.mapping.moments import Moment
from handlers.mapping.web import GLOBAL_SESSION, Mode, map_frame, session_of
from handlers.responses import json_response
from handlers.service import Service
from handlers.tokens import Right
from state.errors import StateError
from state.keys import SessionKey

CHANNEL = "web"
_GLOBAL = "webg"
LONGEST_MS = 25_000
_COMMIT_SECONDS = 5.0
_DAY_MS = 86_400_000
_MOST_SESSIONS = 1_000
_TOGETHER = 16
_CHUNK = 100
_CHUNK_BYTES = 4 * 1024 * 1024
_MOST_ASKS = 16

Cursor = dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line for one session, and how long it was."""

    happening: Happening
    size: int


@dataclass(slots=True)
class Batch:
    """A body as it was read: what happened to each session, in order, and whose cursors are wanted."""

    sessions: dict[str, list[Entry]] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    skipped: int = 0
    empty: bool = True


async def frames_web(request: Request) -> Response:
    """Take a batch: all of it or, when some could not be stored, 503 and the link sends it again.

    400 for an unknown mode, 401, 403, 413, 415. A line that is no frame is skipped and counted: what a
    server sends must not be able to stop a link.
    """
    service: Service = request.app.state.service
    principal = service.gate.admit(request.scope, Right.EMIT, posting=True)
    if media_type(request.headers) != "application/x-ndjson":
        raise Refused(415, "unsupported-media-type", "frames are sent as application/x-ndjson")
    mode = _mode(request.query_params, service.settings.web_mode)
    wait_ms = _wait(request.query_params)
    body = await read_body(request, service.settings.max_body)
    batch = read_batch(body, mode, service.posture)
    service.counters.add("frames.web.received", sum(map(len, batch.sessions.values())))
    if batch.skipped:
        service.counters.add("frames.web.skipped", batch.skipped)
    await _store(service, principal.emitter, batch)
    try:
        found = await _cursors(service, principal.emitter, batch)
    except StateError:
        raise _unstored() from None
    if wait_ms and not service.serverless:
        with Client(request.receive) as client:
            await _hold(service, client, wait_ms / 1000)
    return json_response({"cursors": found, "writes": [], "mode": mode, "skipped": batch.skipped})


def read_batch(body: bytes, mode: Mode, posture: Posture) -> Batch:
    """The lines of a body, mapped."""
    batch = Batch()
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        batch.empty = False
        try:
            value = parse(line)
        except InvalidJSON:
            batch.skipped += 1
            continue
        if not isinstance(value, dict):
            batch.skipped += 1
        elif "link" in value:
            _read_own(batch, value, mode, posture, len(line))
        else:
            _read_frame(batch, value, mode, posture, len(line))
    return batch


def _read_frame(batch: Batch, frame: JSONObject, mode: Mode, posture: Posture, size: int) -> None:
    moment = map_frame(frame, mode, posture)
    seq = None if frame.get("volatile") else count(frame.get("seq"))
    if seq is None:
        if moment is not None:
            _add(batch, moment.session, moment, size)
        return
    channel = _GLOBAL if frame.get("session_id") == GLOBAL_SESSION else CHANNEL
    scope = f"{channel}.{text(frame.get('epoch')) or '-'}"
    _add(batch, session_of(frame), Placed(Tick() if moment is None else moment, scope, seq), size)


def _read_own(batch: Batch, line: JSONObject, mode: Mode, posture: Posture, size: int) -> None:
    kind = line["link"]
    if kind == "sessions":
        ids = line.get("ids")
        named = ids if isinstance(ids, list) else []
        batch.wanted += [one for one in named if isinstance(one, str) and one][:_MOST_SESSIONS]
    elif kind == "claim":
        return
    elif kind == "snapshot" and (resync := _resync(line, mode, posture)) is not None:
        _add(batch, str(line["session_id"]), resync, size)
    else:
        batch.skipped += 1


def _resync(line: JSONObject, mode: Mode, posture: Posture) -> Resync | None:
    session, seq = text(line.get("session_id")), count(line.get("seq"))
    if session is None or seq is None:
        return None
    asks: list[Moment] = []
    for kind, field_name in (("approval", "approvals"), ("question", "questions")):
        listed = line.get(field_name)
        for item in listed[:_MOST_ASKS] if isinstance(listed, list) else []:
            payload: JSONObject = {"agentId": table(item).get("agent_id"), **table(item)}
            frame: JSONObject = {
                "type": f"event.{kind}.requested",
                "session_id": session,
                "timestamp": payload.get("created_at"),
                "payload": payload,
            }
            asked = map_frame(frame, mode, posture)
            if asked is not None and text(payload.get(f"{kind}_id")) is not None:
                asks.append(asked)
    return Resync(
        stream=f"{CHANNEL}.{text(line.get('epoch')) or '-'}",
        number=seq,
        turn=turn_of(count(line.get("turn"))),
        running=flag(line.get("running")) is True,
        asks=tuple(asks),
        reason=token(line.get("reason")),
        missed=count(line.get("missed")),
        primary=mode == "primary",
        bare=posture.level("run.started") is Capture.NONE,
    )


def _add(batch: Batch, session: str, happening: Happening, size: int) -> None:
    batch.sessions.setdefault(session, []).append(Entry(happening, size))


async def _store(service: Service, emitter: str, batch: Batch) -> None:
    """Commit each session's entries in order. Raises `Refused` with 503 unless all of them stand."""
    limit = asyncio.Semaphore(_TOGETHER)

    async def one(session: str, entries: Sequence[Entry]) -> bool:
        async with limit:
            for chunk in chunks(entries):
                outcome = await service.engine.apply(
                    SessionKey(emitter, session),
                    chunk,
                    at_ms=service.clock.now_ms(),
                    deadline=service.clock.steady() + _COMMIT_SECONDS,
                )
                if outcome.stored != "yes":
                    return False
                repeats = sum("repeat" in reply for reply in outcome.replies)
                if repeats:
                    service.counters.add("frames.web.repeated", repeats)
        return True

    stored = await asyncio.gather(*(one(session, entries) for session, entries in batch.sessions.items()))
    if not all(stored):
        service.counters.add("frames.web.unstored")
        raise _unstored()


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


async def _cursors(service: Service, emitter: str, batch: Batch) -> dict[str, Cursor]:
    """Where the sessions of the batch stand, and the wanted ones. Raises `StateError`."""
    names = dict.fromkeys([*batch.sessions, *batch.wanted])
    if batch.empty:
        names = dict.fromkeys(await _active(service, emitter))
    found: dict[str, Cursor] = {}
    keys = [SessionKey(emitter, name) for name in names]
    for start in range(0, len(keys), _TOGETHER):
        part = keys[start : start + _TOGETHER]
        for key, record in zip(part, await asyncio.gather(*map(service.sessions.load, part)), strict=True):
            cursor = None if record.state is None else _cursor(record.state)
            if cursor is not None:
                found[key.session] = cursor
    return found


def _cursor(state: bytes) -> Cursor | None:
    try:
        session = SessionState.decode(state)
    except InvalidState:
        return None
    stands = cursors.latest(session, CHANNEL)
    if stands is None:
        return None
    cursor: Cursor = {"epoch": stands[0], "seq": stands[1]}
    # A run or a request may have ended with the vendor's process, which then says nothing of it.
    return cursor | ({"open": True} if session.run is not None or session.requests else {})


async def _active(service: Service, emitter: str) -> list[str]:
    since_ms = service.clock.now_ms() - _DAY_MS
    names: list[str] = []
    for shard in range(service.keys.shards):
        keys = await service.sessions.sessions(shard, since_ms=since_ms, limit=_MOST_SESSIONS)
        names += [key.session for key in keys if key == SessionKey(emitter, key.session)]
    return names[:_MOST_SESSIONS]


async def _hold(service: Service, client: Client, seconds: float) -> None:
    """Keep the answer back until there is a reason to give it."""
    over = asyncio.Event()
    client.on_gone(over.set)
    try:
        async with asyncio.timeout(seconds):
            while not (over.is_set() or service.draining):
                try:
                    async with asyncio.timeout(1.0):
                        await over.wait()
                except TimeoutError:
                    continue
    except TimeoutError:
        return


def _mode(query: QueryParams, default: Mode) -> Mode:
    value = query.get("mode")
    if value is None:
        return default
    if value == "companion":
        return "companion"
    if value == "primary":
        return "primary"
    raise Refused(400, "unknown-mode", "the mode is companion or primary")


def _wait(query: QueryParams) -> int:
    value = query.get("wait_ms", "0")
    if not value.isascii() or not value.isdecimal():
        raise Refused(400, "bad-wait", "wait_ms is a whole number of milliseconds")
    return min(int(value[:9]), LONGEST_MS)


def _unstored() -> Refused:
    return Refused(503, "no-redis", "not everything could be stored; send the same batch again")
