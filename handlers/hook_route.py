"""`POST /hook`: one hook payload in, the vendor's reply out: at once, unless a human is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers import request_ids
from handlers.admission import body_limit
from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject
from handlers.auth import media_type
from handlers.body import receive_body
from handlers.client import Client
from handlers.engine import Stored
from handlers.errors import InvalidJSON, Refused
from handlers.holding import Held
from handlers.lifecycle.reducer import UNKNOWN
from handlers.mapping.gates import gate_request, is_gated
from handlers.mapping.hooks import map_hook
from handlers.responses import json_response, refusal
from handlers.service import Service
from handlers.tokens import Principal, Right
from state.keys import SessionKey

log = logging.getLogger(__name__)


class HookFront:
    """Answers `POST /hook` ahead of the router: it is nearly all of the traffic, and an agent waits for it.

    What it does not know (another path, a prefix of a host) goes on to the application behind.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/hook" or scope["method"] != "POST":
            await identified(self._app, scope, receive, send)
            return
        # Off the hot path: an id is made only for those who ask for one, or need one in a log line.
        identity = request_ids.given(scope["headers"])
        request_ids.current.set(identity)
        try:
            answer = await _answer(self._service, scope, receive)
        except Refused as error:
            self._service.audit.refused(scope, error)
            await refusal(error, identity)(scope, receive, send)
            return
        body = orjson.dumps(answer.reply)
        headers = [*_HEADERS[answer.stored], (b"content-length", b"%d" % len(body))]
        if identity is not None:
            headers.append((request_ids.HEADER, identity))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def identified(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app` for a request with an id of its own, which its answer repeats."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    identity = request_ids.given(scope["headers"]) or request_ids.made()
    request_ids.current.set(identity)

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (request_ids.HEADER, identity)]}
        await send(message)

    await app(scope, receive, tell)


_HEADERS = {
    stored: (
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        (b"aep-stored", stored.encode()),
    )
    for stored in ("yes", "no", "unknown")
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the vendor is told, and whether the event is stored."""

    reply: JSONObject
    stored: Stored


@dataclass(frozen=True, slots=True)
class _Taken:
    """A hook event that was observed. `held` is the hook that now waits, `queue` what its prompt may take."""

    key: SessionKey
    stored: Stored
    held: Held | None = None
    queue: tuple[str, ...] = ()


async def hook(request: Request) -> Response:
    """Observe one hook event (DESIGN §5: the agent is never harmed by us).

    200 with `{}` or the vendor's reply object, at once unless the call is held. 400 for what can never be an
    event, 413 and 415 for a body that is too large or not JSON. `AEP-Stored` says `yes`, `no` or `unknown`.
    """
    answer = await _answer(request.app.state.service, request.scope, request.receive)
    return json_response(answer.reply, headers={"AEP-Stored": answer.stored})


async def _answer(service: Service, scope: Scope, receive: Receive) -> Answer:
    """One request up to its answer. Raises `Refused`."""
    # Whatever the payload weighed is let go with the frame of this call, before anything waits.
    taken = await _take(service, scope, receive)
    service.counters.add(f"hooks.stored.{taken.stored}")
    if taken.held is not None:
        return Answer(await _hold(service, taken.held, receive), taken.stored)
    if taken.queue:
        return Answer(await _steer(service, taken.key, taken.queue, receive), taken.stored)
    return Answer({}, taken.stored)


async def _take(service: Service, scope: Scope, receive: Receive) -> _Taken:
    """Read, map and commit one payload."""
    arrived_ms = service.clock.now_ms()
    started = service.clock.steady()
    principal = service.gate.admit(scope, Right.EMIT, posting=True)
    headers = Headers(scope=scope)
    if media_type(headers) != "application/json":
        raise Refused(415, "unsupported-media-type", "a hook payload is sent as application/json")
    body = await receive_body(headers, receive, body_limit(service, principal))
    payload = decode(body)
    service.counters.add("hooks.received")
    if service.rates.wait(principal, started):
        # The observer never breaks the agent: it goes on unobserved.
        service.counters.add("hooks.limited")
        return _Taken(SessionKey(principal.emitter, UNKNOWN), "no")
    service.rates.take(principal, started)
    taken = await observe(service, principal, payload, arrived_ms, started)
    service.counters.hook.observe(service.clock.steady() - started)
    return taken


async def _hold(service: Service, held: Held, receive: Receive) -> JSONObject:
    """Wait for the human; `{}` is no objection and nothing more."""
    try:
        with Client(receive) as client:
            denied = await service.holding.keep(held, client)
    except Exception:
        log.exception("a hook could not be held")
        service.counters.add("gates.failed")
        return {}
    if denied is None:
        return {}
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": denied.reason,
        }
    }


async def _steer(service: Service, key: SessionKey, queue: tuple[str, ...], receive: Receive) -> JSONObject:
    """Hand the waiting instructions over with this reply, if its reader is still there."""
    try:
        with Client(receive) as client:
            ticket = service.holding.ticket()
            message = await service.steering.take(key, queue, ticket, client)
            if message is None:
                return {}
            await client.settle()
            if client.gone:
                await service.steering.give_back(key, ticket)
                return {}
            return {"message": message}
    except Exception:
        log.exception("instructions could not be handed over")
        service.counters.add("instructions.failed")
        return {}


def decode(body: bytes) -> JSONObject:
    """The payload of a hook. Raises `Refused` with 400."""
    try:
        payload = parse(body)
    except InvalidJSON as error:
        raise Refused(400, "invalid-json", str(error)) from None
    if not isinstance(payload, dict):
        raise Refused(400, "not-an-object", "a hook payload is a JSON object")
    return payload


async def observe(
    service: Service, principal: Principal, payload: JSONObject, arrived_ms: int, started: float
) -> _Taken:
    """Map and commit one payload; a fault of ours is logged, counted and costs the agent nothing."""
    key = SessionKey(principal.emitter, UNKNOWN)
    try:
        moment = map_hook(payload, service.posture)
        key = SessionKey(principal.emitter, moment.session)
        settings = service.settings
        deadline = started + settings.hook_timeout_ms / 1000
        if settings.control and moment.session != UNKNOWN and is_gated(payload, settings.gate_tools):
            until_ms = arrived_ms + settings.attention_timeout_ms
            held, stored = await service.holding.open(
                key,
                moment,
                gate_request(payload, service.posture, until_ms),
                until_ms=until_ms,
                at_ms=arrived_ms,
                deadline=deadline,
            )
            return _Taken(key, stored, held)
        outcome = await service.engine.submit(key, moment, at_ms=arrived_ms, deadline=deadline)
        queue = outcome.reply.get("queue")
        if isinstance(queue, list) and settings.instruct:
            return _Taken(key, outcome.stored, queue=tuple(str(name) for name in queue))
        return _Taken(key, outcome.stored)
    except Exception:
        # The vendor's agent waits for this answer: a defect of ours must cost it nothing.
        log.exception("a hook event could not be handled")
        service.counters.add("hooks.failed")
        return _Taken(key, "no")
