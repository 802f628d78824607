"""`POST /frames/acp`: what an ACP tee saw, as numbered lines (`deploy.acp` has the format).

Taking a batch twice tells nothing twice, whichever process takes it and wherever an earlier one was cut off:
each session's state knows the last line it took of a connection (`lifecycle.cursors`), and what the lines
mean follows from the memory that stands in Redis until all of them are stored.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from handlers.admission import admitted_body
from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject
from handlers.agents import ACP
from handlers.errors import InvalidJSON, InvalidState, Refused
from handlers.head import head_of, media_type
from handlers.lifecycle.cursors import Placed
from handlers.limit import Limit
from handlers.mapping.acp_joins import END, TO_AGENT, TO_CLIENT, Joins, matters
from handlers.responses import STORED, json_response
from handlers.service import Service
from handlers.tokens import Right
from state.errors import StateError
from state.keys import SessionKey
from state.wires import KEEP_MS, OVER_MS, Memory

log = logging.getLogger(__name__)

MEDIA_TYPES = frozenset({"application/x-ndjson", "application/ndjson"})

_SECONDS = 3.0
"""Less than the tee waits for an answer, so that it hears of a failure instead of guessing."""

_TRIES = 3
_PART = 128
_BREATH = 32
_OLD_MS = 7 * 86_400_000
_LINK = re.compile(r"[A-Za-z0-9_-]{1,32}")
_DIRECTIONS = frozenset({TO_AGENT, TO_CLIENT, END})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a batch. `at_ms` is when the tee had it, Unix milliseconds."""

    number: int
    at_ms: int
    direction: str
    link: str
    frame: JSONObject


async def frames_acp(request: Request) -> Response:
    """Observe a batch: 200 with the number of the last line of each connection that is stored.

    400 for a body without a single line of the format, 413 and 415 as ever. 503 when it could not be stored
    whole: the same lines may come again, and should.
    """
    service: Service = request.app.state.service
    arrived_ms = service.clock.now_ms()
    principal = service.gate.admit(request.scope, Right.EMIT, posting=True)
    if media_type(head_of(request.scope)) not in MEDIA_TYPES:
        raise Refused(415, "unsupported-media-type", "frames are sent as application/x-ndjson")
    body = await admitted_body(service, request, principal)
    lines, malformed = read_lines(body, arrived_ms)
    service.counters.add("acp.lines", len(lines))
    service.counters.add("acp.malformed", malformed)
    if malformed and not lines:
        raise Refused(400, "invalid-lines", "no line of the body is a frame with n, t, dir and conn")
    taken: dict[str, int] = {}
    try:
        with Limit(_SECONDS):
            for link in dict.fromkeys(line.link for line in lines):
                part = [line for line in lines if line.link == link]
                taken[link] = await _take(service, principal.emitter, link, part, arrived_ms)
    except (StateError, TimeoutError):
        service.counters.add("acp.unstored", len(lines))
        raise Refused(
            503, "not-stored", "the frames could not be stored; send them again", stored="unknown"
        ) from None
    return json_response({"cursors": taken}, headers=STORED)


def read_lines(body: bytes, now_ms: int) -> tuple[list[Line], int]:
    """The lines of a batch in their order, and how many could not be read. Times lie before `now_ms`."""
    lines: list[Line] = []
    malformed = 0
    for text in body.split(b"\n"):
        if not text.strip():
            continue
        line = _line(text, now_ms)
        if line is None:
            malformed += 1
        else:
            lines.append(line)
    return lines, malformed


def _line(text: bytes, now_ms: int) -> Line | None:
    try:
        value = parse(text)
    except InvalidJSON:
        return None
    if not isinstance(value, dict):
        return None
    number, at_ms, frame = value.get("n"), value.get("t"), value.get("frame")
    direction, link = value.get("dir"), value.get("conn")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**53:
        return None
    if not isinstance(frame, dict) or direction not in _DIRECTIONS:
        return None
    if not isinstance(link, str) or not _LINK.fullmatch(link):
        return None
    if isinstance(at_ms, bool) or not isinstance(at_ms, int) or not now_ms - _OLD_MS <= at_ms <= now_ms:
        at_ms = now_ms
    return Line(number, at_ms, str(direction), link, frame)


async def _take(service: Service, emitter: str, link: str, lines: Sequence[Line], now_ms: int) -> int:
    """Store what the lines of one connection tell; the number of the last one. Raises `StateError`."""
    for _ in range(_TRIES):
        known = await service.wires.load(emitter, link)
        fresh = _fresh(lines, known.number)
        service.counters.add("acp.repeated", len(lines) - len(fresh))
        if not fresh:
            return known.number
        joins = _decode(known)
        placed = await _join(service, joins, fresh)
        await _store(service, emitter, placed, now_ms)
        last, over = fresh[-1].number, fresh[-1].direction == END
        memory = Memory(last, joins.encode())
        if await service.wires.move(emitter, link, known, memory, keep_ms=OVER_MS if over else KEEP_MS):
            _count(service, fresh, known.number)
            return last
        # The same batch came twice at once, or Redis lost its data meanwhile.
        service.counters.add("acp.conflicts")
    raise TimeoutError


def _fresh(lines: Sequence[Line], after: int) -> list[Line]:
    """The lines behind number `after`, each once and in their order."""
    found: list[Line] = []
    for line in lines:
        if line.number > after:
            found.append(line)
            after = line.number
    return found


def _decode(memory: Memory) -> Joins:
    try:
        return Joins.decode(memory.value)
    except InvalidState as error:
        log.warning("%s", error)
        return Joins()


async def _join(service: Service, joins: Joins, lines: Sequence[Line]) -> dict[str, list[Placed]]:
    """What each session is told."""
    placed: dict[str, list[Placed]] = {}
    for count, line in enumerate(lines, 1):
        for moment in joins.take(line.direction, line.frame, line.link, service.posture):
            if matters(moment):
                timed = replace(moment, time_ms=line.at_ms)
                placed.setdefault(moment.session, []).append(Placed(timed, f"{ACP}.{line.link}", line.number))
        if count % _BREATH == 0:
            # Hooks are waiting for this process, too.
            await asyncio.sleep(0)
    return placed


async def _store(service: Service, emitter: str, placed: dict[str, list[Placed]], now_ms: int) -> None:
    deadline = service.clock.steady() + _SECONDS

    async def one(session: str, moments: list[Placed]) -> None:
        key = SessionKey(emitter, session, ACP)
        for start in range(0, len(moments), _PART):
            part = moments[start : start + _PART]
            outcome = await service.engine.apply(key, part, at_ms=now_ms, deadline=deadline)
            if outcome.stored != "yes":
                raise TimeoutError

    results = await asyncio.gather(
        *(one(session, moments) for session, moments in placed.items()), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _count(service: Service, lines: Sequence[Line], before: int) -> None:
    """What never reached us: the numbers that are missing, and what the tee itself had to drop."""
    missed = lines[-1].number - before - len(lines)
    if missed > 0:
        service.counters.add("acp.missed", missed)
