"""`GET /stream`: events as server-sent messages (AEP-0003 §3.3, §6, §7, §8.4)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.aep.canonical import parse
from handlers.aep.filters import Filter, parse_filter
from handlers.aep.levels import Capture
from handlers.delivery import Item, Outbox
from handlers.errors import InvalidFilter, InvalidJSON, InvalidPosition, Refused, TooManyPositions
from handlers.fanout import Subscription
from handlers.positions import Resume, parse_event_id, parse_resume
from handlers.replaying import Exhausted
from handlers.service import Service
from handlers.tokens import Principal, Right
from state.errors import StateError

log = logging.getLogger(__name__)

_PING_SECONDS = 15.0
_READY_SECONDS = 2.0
_CHUNK_BYTES = 65_536
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a consumer wants: which events, at which ceiling, from where, and whether to stay.

    `scope` is the only emitter whose events it may have, None for those of all.
    """

    filter: Filter
    sessions: frozenset[str] | None
    ceiling: Capture | None
    resume: Resume | None
    live: bool
    scope: str | None = None


async def stream(request: Request) -> Response:
    """Answer with a stream, or refuse before it begins (400, 401, 403, 503)."""
    service: Service = request.app.state.service
    principal = service.gate.admit(request.scope, Right.WATCH, query=True)
    ask = replace(parse_ask(request, service.settings.max_from), scope=principal.scope)
    if ask.live and service.serverless:
        raise Refused(
            501, "no-live-stream", "this host buffers answers: ask with live=0, or use a host that streams"
        )
    if service.draining:
        raise Refused(503, "shutting-down", "this process is stopping; another one will answer")
    if ask.live and not await service.hub.ready(_READY_SECONDS):
        raise Refused(503, "no-redis", "Redis is not there: a stream could not keep its promises")
    return EventStream(service, ask, principal)


def parse_ask(request: Request, max_from: int) -> Ask:
    """The parameters of the query. Raises `Refused` with 400 for anything malformed: fail closed."""
    query = request.query_params
    try:
        wanted = parse(query.get("filter", "{}").encode("utf-8", "surrogatepass"))
        filter = parse_filter(wanted)
    except (InvalidJSON, InvalidFilter) as error:
        raise Refused(400, "invalid-filter", str(error)) from None
    resume: Resume | None = None
    try:
        text = query.get("from")
        if text == "all":
            resume = "all"
        elif text:
            resume = parse_resume(parse(text.encode("utf-8", "surrogatepass")), max_from)
        else:
            position = parse_event_id(request.headers.get("last-event-id", ""))
            resume = (position,) if position is not None else None
    except TooManyPositions as error:
        raise Refused(400, "limit-exceeded", str(error)) from None
    except (InvalidJSON, InvalidPosition) as error:
        raise Refused(400, "invalid-from", str(error)) from None
    ceiling = query.get("capture") or None
    if ceiling is not None and ceiling not in frozenset(Capture):
        raise Refused(400, "invalid-capture", "capture is none, metadata, redacted or full")
    return Ask(
        filter=filter,
        sessions=sessions_of(wanted),
        ceiling=Capture(ceiling) if ceiling is not None else None,
        resume=resume,
        live=query.get("live") not in {"0", "false"},
    )


def sessions_of(wanted: object) -> frozenset[str] | None:
    """The sessions that a filter is limited to; None when it takes any."""
    value = wanted.get("session") if isinstance(wanted, dict) else None
    if isinstance(value, str):
        return frozenset({value})
    if isinstance(value, list):
        return frozenset(entry for entry in value if isinstance(entry, str))
    return None


class EventStream(Response):
    """One consumer's stream, from the replay to the end."""

    def __init__(self, service: Service, ask: Ask, principal: Principal) -> None:
        super().__init__()
        self.principal = principal
        self._service = service
        self._ask = ask
        self._box = Outbox()
        self._stopping = False

    def drain(self) -> None:
        """The process is stopping: say so and end."""
        self._stopping = True
        self._box.close()

    def expel(self) -> None:
        """Its token is no longer what it was: end."""
        self._box.close()

    def lag(self) -> None:
        """The feed lost something: end, so that the consumer resumes."""
        self._box.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._box.on_overrun = partial(_cancel, task)
        subscription = Subscription(
            self,
            self._box,
            Item.message,
            self._ask.filter,
            self._ask.ceiling,
            scope=self._ask.scope,
            holding=self._ask.resume is not None,
        )
        watcher = asyncio.create_task(self._watch(receive))
        self._service.counters.add("streams.opened")
        try:
            if self._ask.live:
                self._service.hub.add(subscription)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _write(send, b": connected\n\n")
            whole = self._ask.resume is None or await self._replay(subscription, send)
            if whole and self._ask.live:
                # In a task of its own: an event would else wake every layer around this response on its way.
                await asyncio.create_task(self._live(send))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._box.overrun:
                raise
            task.uncancel()
            self._service.counters.add("streams.overrun")
        finally:
            self._service.hub.remove(subscription)
            self._box.close()
            self._service.counters.add("streams.dropped", self._box.dropped)
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._box.close()

    async def _replay(self, subscription: Subscription, send: Send) -> bool:
        """Send what is held; False when Redis went away, and with it the promise of no gap."""
        assert self._ask.resume is not None
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in self._service.replayer.chunks(
                self._ask.resume, self._ask.sessions, scope=self._ask.scope
            ):
                if self._box.closed:
                    return False
                if isinstance(chunk, Exhausted):
                    parts.append(exhausted_comment(chunk))
                    continue
                for item in chunk:
                    message = subscription.replay(item)
                    if message is not None:
                        parts.append(message)
                        size += len(message)
                        self._service.counters.add("events.out.stream")
                if size >= _CHUNK_BYTES:
                    await _write(send, b"".join(parts))
                    parts, size = [], 0
        except StateError as error:
            log.warning("a replay was cut short: %s", error)
            await _write(send, b"".join(parts))
            return False
        parts.append(b": replay-complete\n\n")
        await _write(send, b"".join(parts))
        self._service.hub.settle(subscription)
        return True

    async def _live(self, send: Send) -> None:
        while True:
            if not await self._box.ready(_PING_SECONDS):
                await _write(send, b": ping\n\n")
                continue
            while waiting := self._box.take(_CHUNK_BYTES):
                await _write(send, b"".join(waiting))
                self._service.counters.add("events.out.stream", len(waiting))
            if self._box.closed:
                if self._stopping:
                    await _write(send, b": shutting-down\n\n")
                return


def exhausted_comment(chunk: Exhausted) -> bytes:
    """AEP-0003 §3.3.3. A session name that would break the line or its words is percent-encoded."""
    session = chunk.session
    if any(character.isspace() or not character.isprintable() for character in session):
        session = quote(session, safe="")
    return f": replay-exhausted {session} {chunk.epoch}:{chunk.seq}\n\n".encode()


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
