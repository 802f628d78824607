"""`POST /hook`: one hook payload in, the vendor's reply out, at once and whatever happens."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject
from handlers.auth import media_type
from handlers.body import read_body
from handlers.engine import Outcome
from handlers.errors import InvalidJSON, Refused
from handlers.mapping.hooks import map_hook
from handlers.responses import json_response
from handlers.service import Service
from handlers.tokens import Principal, Right
from state.keys import SessionKey

log = logging.getLogger(__name__)


async def hook(request: Request) -> Response:
    """Observe one hook event (DESIGN §5: the agent is never held by us, and never harmed).

    200 with `{}` or the vendor's reply object. 400 for what can never be an event, 413 and 415 for a body
    that is too large or not JSON. `AEP-Stored` says `yes`, `no` or `unknown`.
    """
    service: Service = request.app.state.service
    arrived_ms = service.clock.now_ms()
    started = service.clock.steady()
    principal = service.gate.admit(request.scope, Right.EMIT, posting=True)
    if media_type(request.headers) != "application/json":
        raise Refused(415, "unsupported-media-type", "a hook payload is sent as application/json")
    body = await read_body(request, service.settings.max_body)
    payload = decode(body)
    service.counters.add("hooks.received")
    outcome = await observe(service, principal, payload, arrived_ms, started)
    service.counters.add(f"hooks.stored.{outcome.stored}")
    return json_response(outcome.reply, headers={"AEP-Stored": outcome.stored})


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
