"""`POST /frames/web`: ordered batches of a link's `kimi web` frames, each taken once.

The body is NDJSON. A line is a frame of the vendor's as received, or one of the link's own:

    {"link": "sessions", "ids": […]}       whose cursors the answer tells
    {"link": "claim", "ids": […]}          the sessions that are live at the link's server
    {"link": "snapshot", "session_id": …}  where a session stands, after frames that cannot be had any more
    {"link": "result", "id": …}            what came of a write

`?link=` names the link, `?mode=` is how frames are read (default `AEP_KIMI_WEB_MODE`), `?wait_ms=` how long
an answer may be held back for something to do. The answer has `cursors` (session → `{"epoch", "seq"}`, the
last frame taken) and `writes`, what the link is to do at the vendor's server. Without a line it tells the
cursors of every session of the emitter that was active within a day.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from handlers.admission import admitted_body
from handlers.aep.levels import JSONValue
from handlers.client import Client
from handlers.errors import InvalidState, Refused
from handlers.head import head_of, media_type
from handlers.lifecycle import cursors
from handlers.lifecycle.state import SessionState
from handlers.mapping.web import Mode
from handlers.responses import STORED, json_response
from handlers.service import Service
from handlers.tokens import Right
from handlers.web_batch import CHANNEL, MOST_SESSIONS, Batch, Entry, Reader, chunks
from state.errors import StateError
from state.keys import SessionKey

LONGEST_MS = 25_000
_COMMIT_SECONDS = 5.0
_DAY_MS = 86_400_000
_TOGETHER = 16
_LINK = re.compile(r"[A-Za-z0-9]{1,64}")

Cursor = dict[str, JSONValue]


async def frames_web(request: Request) -> Response:
    """Take a batch: all of it or, when some could not be stored, 503 and the link sends it again.

    400 for a query that is not understood, 401, 403, 413, 415.
    """
    service: Service = request.app.state.service
    principal = service.gate.admit(request.scope, Right.EMIT, posting=True)
    if media_type(head_of(request.scope)) != "application/x-ndjson":
        raise Refused(415, "unsupported-media-type", "frames are sent as application/x-ndjson")
    reader = _reader(service, request.query_params)
    wait_ms = _wait(request.query_params)
    batch = reader.read(await admitted_body(service, request, principal))
    service.counters.add("frames.web.received", sum(map(len, batch.sessions.values())))
    if batch.skipped:
        service.counters.add("frames.web.skipped", batch.skipped)
    await _store(service, principal.emitter, batch)
    try:
        found = await _cursors(service, principal.emitter, batch, reader.link)
    except StateError:
        raise _unstored() from None
    writes: list[JSONValue] = []
    if wait_ms and reader.link is not None:
        seconds = 0.0 if service.serverless else wait_ms / 1000
        with Client(request.receive) as client:
            writes = await service.web_orders.collect(principal.emitter, reader.link, client, seconds)
    answer = {"cursors": found, "writes": writes, "mode": reader.mode, "skipped": batch.skipped}
    return json_response(answer, headers=STORED)


def _reader(service: Service, query: QueryParams) -> Reader:
    mode = _mode(query, service.settings.web_mode)
    link = query.get("link")
    if link is not None and not _LINK.fullmatch(link):
        raise Refused(400, "bad-link", "link is 1 to 64 letters and digits")
    offers = service.settings.answers_web and mode == "primary"
    return Reader(mode, service.posture, link, offers)


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


async def _cursors(service: Service, emitter: str, batch: Batch, link: str | None) -> dict[str, Cursor]:
    """Where the sessions of the batch stand, and the wanted ones. Raises `StateError`."""
    names = dict.fromkeys([*batch.sessions, *batch.wanted])
    if batch.empty:
        names = dict.fromkeys(await _active(service, emitter))
    found: dict[str, Cursor] = {}
    keys = [SessionKey(emitter, name) for name in names]
    for start in range(0, len(keys), _TOGETHER):
        part = keys[start : start + _TOGETHER]
        for key, record in zip(part, await asyncio.gather(*map(service.sessions.load, part)), strict=True):
            cursor = None if record.state is None else _cursor(record.state, link)
            if cursor is not None:
                found[key.session] = cursor
    return found


def _cursor(state: bytes, link: str | None) -> Cursor | None:
    try:
        session = SessionState.decode(state)
    except InvalidState:
        return None
    stands = cursors.latest(session, CHANNEL)
    if stands is None:
        return None
    cursor: Cursor = {"epoch": stands[0], "seq": stands[1]}
    if session.web.stamp:
        cursor["stamp"] = session.web.stamp
    # A run or a request may have ended with the vendor's process, which then says nothing of it.
    if session.run is not None or session.requests:
        cursor["open"] = True
    if link is not None and session.web.link == link:
        cursor["linked"] = True
    return cursor


async def _active(service: Service, emitter: str) -> list[str]:
    since_ms = service.clock.now_ms() - _DAY_MS
    names: list[str] = []
    for shard in range(service.keys.shards):
        keys = await service.sessions.sessions(shard, since_ms=since_ms, limit=MOST_SESSIONS)
        names += [key.session for key in keys if key == SessionKey(emitter, key.session)]
    return names[:MOST_SESSIONS]


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
    return Refused(
        503, "no-redis", "not everything could be stored; send the same batch again", stored="unknown"
    )
