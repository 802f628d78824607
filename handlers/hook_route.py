"""`POST /hook`: one hook payload in, the vendor's reply out: at once, unless a human is asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import orjson
from starlette.types import Receive, Scope, Send

from handlers import request_ids
from handlers.admission import body_limit
from handlers.aep.canonical import parse
from handlers.aep.levels import JSONObject
from handlers.body import receive_body
from handlers.client import Client
from handlers.engine import Stored
from handlers.errors import InvalidJSON, Refused
from handlers.head import Head, head_of, media_type
from handlers.holding import Held
from handlers.lifecycle.reducer import UNKNOWN
from handlers.mapping.gates import gate_request, is_gated
from handlers.mapping.hooks import map_hook
from handlers.responses import refusal
from handlers.service import Service
from handlers.tokens import Principal, Right
from state.keys import SessionKey

log = logging.getLogger(__name__)


class HookFront:
    """`POST /hook`: observe one hook event.

    200 with `{}` or the vendor's reply object, at once unless the call is held. 400 for what can never be an
    event, 413 and 415 for a body that is too large or not JSON. `AEP-Stored` says `yes`, `no` or `unknown`
    (DESIGN §5: the agent is never harmed by us).
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = head_of(scope)
        # Off the hot path: an id is made only for those who ask for one, or need one in a log line.
        identity = request_ids.given(head)
        request_ids.current.set(identity)
        try:
            # Whatever the payload weighed is let go with the frame of this call, before anything waits.
            taken = await _take(self._service, scope, head, receive)
        except Refused as error:
            self._service.audit.refused(scope, error)
            await refusal(error, identity)(scope, receive, send)
            return
        self._service.counters.add(_COUNTED[taken.stored])
        body = b"{}"
        if taken.held is not None or taken.queue:
            body = orjson.dumps(await _reply(self._service, taken, receive))
        headers = [*_HEADERS[taken.stored], (b"content-length", b"%d" % len(body))]
        if identity is not None:
            headers.append((request_ids.HEADER, identity))
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
_COUNTED = {stored: f"hooks.stored.{stored}" for stored in _HEADERS}


@dataclass(frozen=True, slots=True)
class _Taken:
    """A hook event that was observed. `held` is the hook that now waits, `queue` what its prompt may take."""

    key: SessionKey
    stored: Stored
    held: Held | None = None
    queue: tuple[str, ...] = ()


async def _take(service: Service, scope: Scope, head: Head, receive: Receive) -> _Taken:
    """Read, map and commit one payload. Raises `Refused`."""
    clock, counters = service.clock, service.counters
    arrived_ms = clock.now_ms()
    started = clock.steady()
    principal = service.gate.admit(scope, Right.EMIT, posting=True, head=head)
    if head.get(b"content-type") != b"application/json" and media_type(head) != "application/json":
        raise Refused(415, "unsupported-media-type", "a hook payload is sent as application/json")
    payload = decode(await receive_body(head, receive, body_limit(service, principal)))
    counters.add("hooks.received")
    if not service.rates.admits(principal, started):
        # The observer never breaks the agent: it goes on unobserved.
        counters.add("hooks.limited")
        return _Taken(SessionKey(principal.emitter, UNKNOWN), "no")
    taken = await observe(service, principal, payload, arrived_ms, started)
    counters.hook.observe(clock.steady() - started)
    return taken


async def _reply(service: Service, taken: _Taken, receive: Receive) -> JSONObject:
    """What the vendor is told, once it is known."""
    if taken.held is not None:
        return await _hold(service, taken.held, receive)
    return await _steer(service, taken.key, taken.queue, receive)


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
        queue = outcome.replies[0].get("queue")
        if isinstance(queue, list) and settings.instruct:
            return _Taken(key, outcome.stored, queue=tuple(str(name) for name in queue))
        return _Taken(key, outcome.stored)
    except Exception:
        # The vendor's agent waits for this answer: a defect of ours must cost it nothing.
        log.exception("a hook event could not be handled")
        service.counters.add("hooks.failed")
        return _Taken(key, "no")
