"""`POST /hook`: one hook payload in, the vendor's reply out, at once and whatever happens."""

from __future__ import annotations

import logging

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject
from handlers.auth import media_type
from handlers.body import receive_body
from handlers.engine import Outcome
from handlers.errors import InvalidJSON, Refused
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
            await self._app(scope, receive, send)
            return
        try:
            outcome = await _take(self._service, scope, receive)
        except Refused as error:
            await refusal(error)(scope, receive, send)
            return
        body = orjson.dumps(outcome.reply)
        headers = [*_HEADERS[outcome.stored], (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


_HEADERS = {
    stored: (
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        (b"aep-stored", stored.encode()),
    )
    for stored in ("yes", "no", "unknown")
}


async def hook(request: Request) -> Response:
    """Observe one hook event (DESIGN §5: the agent is never held by us, and never harmed).

    200 with `{}` or the vendor's reply object. 400 for what can never be an event, 413 and 415 for a body
    that is too large or not JSON. `AEP-Stored` says `yes`, `no` or `unknown`.
    """
    outcome = await _take(request.app.state.service, request.scope, request.receive)
    return json_response(outcome.reply, headers={"AEP-Stored": outcome.stored})


async def _take(service: Service, scope: Scope, receive: Receive) -> Outcome:
    """One request up to its outcome. Raises `Refused`."""
    arrived_ms = service.clock.now_ms()
    started = service.clock.steady()
    principal = service.gate.admit(scope, Right.EMIT, posting=True)
    headers = Headers(scope=scope)
    if media_type(headers) != "application/json":
        raise Refused(415, "unsupported-media-type", "a hook payload is sent as application/json")
    body = await receive_body(headers, receive, service.settings.max_body)
    payload = decode(body)
    service.counters.add("hooks.received")
    outcome = await observe(service, principal, payload, arrived_ms, started)
    service.counters.add(f"hooks.stored.{outcome.stored}")
    return outcome


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
) -> Outcome:
    """Map and commit one payload; a fault of ours is logged, counted and answered with an empty reply."""
    try:
        moment = map_hook(payload, service.posture)
        key = SessionKey(principal.emitter, moment.session)
        deadline = started + service.settings.hook_timeout_ms / 1000
        return await service.engine.submit(key, moment, at_ms=arrived_ms, deadline=deadline)
    except Exception:
        # The vendor's agent waits for this answer: a defect of ours must cost it nothing.
        log.exception("a hook event could not be handled")
        service.counters.add("hooks.failed")
        return Outcome(({},), "no")
