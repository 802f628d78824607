"""The AWS Lambda entry: `handlers.aws.handler`, for API Gateway REST and HTTP APIs and Function URLs.

Lambda freezes the process between invocations and buffers answers, so nothing runs in the background, live
streams and sockets are refused, and the connection to Redis is made by the first invocation and kept for the
next ones. What the sweeper does elsewhere is done by an EventBridge schedule that invokes the same function.

The shapes of events are in the AWS Lambda Developer Guide ("Using AWS Lambda with Amazon API Gateway",
"Lambda function URLs") and the API Gateway Developer Guide ("Working with AWS Lambda proxy integrations").
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mangum import Mangum
from starlette.types import Receive, Scope, Send

from handlers.app import LazyApp
from handlers.errors import Refused
from handlers.responses import refusal

Invocation = Callable[[dict[str, Any], Any], dict[str, Any]]

TRUSTED_SECONDS = 60.0
"""After a longer pause a connection is not used again: what lies between may have forgotten it in silence."""
GATEWAY_MS = 29_000
"""How long API Gateway waits for an answer, whatever the function's own limit is. A Function URL waits on."""
RESERVE_MS = 3_000
"""What a hold leaves of that: an answer that comes at its end is applied up to 2 s later, and sent."""
LARGEST = 6 * 1024 * 1024
"""Bytes of an answer, as JSON, that Lambda passes on; a larger one becomes an error that says nothing."""
_SHORTEST_MS = 1_000
_NO_SOCKET = "this host keeps no connections: use a host that does, on the same Redis"
_NO_ROOM = "this host passes on 6 MiB at most: filter by session, resume with from, or use another host"


class Function:
    """One Lambda function, which AWS calls for one request at a time; what it keeps between them."""

    def __init__(self, app: LazyApp, now: Callable[[], float] = time.time) -> None:
        self.app = app
        self._now = now
        self._ended: float | None = None
        self._http = Mangum(self._serve, lifespan="off")

    def __call__(self, event: dict[str, Any], context: Any) -> dict[str, Any]:
        """Answer a request, or the schedule's call to tick what is due.

        A request cannot pass for a schedule: what a client sends is always inside an event that AWS makes.
        """
        try:
            if event.get("source") == "aws.events":
                # Mangum has seen to it that this thread has a loop; the connection to Redis belongs to it.
                return {"ticked": asyncio.get_event_loop().run_until_complete(self._sweep())}
            if "connectionId" in event.get("requestContext", {}):
                # A WebSocket API asks before it opens a connection; this status is the client's answer.
                return _plainly("no-socket", _NO_SOCKET)
            answer = self._http(event, context)
            return answer if _fits(answer) else _plainly("answer-too-large", _NO_ROOM)
        finally:
            self._ended = self._now()

    async def _sweep(self) -> int:
        await self._renew()
        return await self.app.service.sweep()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        event = scope["aws.event"]
        scope["path"] = route(event, scope["path"])
        if scope["path"] == "/socket":
            await refusal(Refused(501, "no-socket", _NO_SOCKET))(scope, receive, send)
            return
        await self._renew()
        service = self.app.service
        whole = service.settings
        left = left_ms(event, scope["aws.context"], self._now()) - RESERVE_MS
        hold = int(min(whole.attention_timeout_ms, left))
        if hold < whole.attention_timeout_ms:
            asks = whole.control and hold >= _SHORTEST_MS
            service.settings = replace(whole, attention_timeout_ms=max(hold, 1), control=asks)
        try:
            await self.app(scope, receive, send)
        finally:
            service.settings = whole

    async def _renew(self) -> None:
        """Begin with new connections where the old ones have been frozen for long."""
        if self._ended is not None and not 0 <= self._now() - self._ended <= TRUSTED_SECONDS:
            await self.app.service.stop()
            self.app = LazyApp(serverless=True)


def route(event: dict[str, Any], path: str) -> str:
    """The path as the service knows it, without the stage and without what a custom domain puts before it."""
    rest = (event.get("pathParameters") or {}).get("proxy")
    if isinstance(rest, str):
        return f"/{rest}"
    for declared in (event.get("resource"), str(event.get("routeKey", "")).partition(" ")[2]):
        if isinstance(declared, str) and declared.startswith("/") and "{" not in declared:
            return declared
    stage = event["requestContext"].get("stage")
    return path.removeprefix(f"/{stage}") if path.startswith(f"/{stage}/") else path


def left_ms(event: dict[str, Any], context: Any, now: float) -> float:
    """Milliseconds until nobody waits for the answer any more: the function's own limit, the gateway's."""
    limits = [float("inf")]
    if context is not None:
        limits.append(float(context.get_remaining_time_in_millis()))
    asked = event["requestContext"]
    if ".lambda-url." not in asked.get("domainName", ""):
        came = asked.get("timeEpoch", asked.get("requestTimeEpoch"))
        limits.append(GATEWAY_MS - (max(0.0, now * 1000 - came) if isinstance(came, int) else 0.0))
    return min(limits)


def _fits(answer: dict[str, Any]) -> bool:
    # JSON makes no byte of a body more than six, so most need not be looked at.
    if len(answer["body"]) * 6 < LARGEST:
        return True
    return len(json.dumps(answer, ensure_ascii=False).encode()) <= LARGEST


def _plainly(code: str, detail: str) -> dict[str, Any]:
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    body = json.dumps({"error": code, "detail": detail})
    return {"statusCode": 501, "headers": headers, "body": body, "isBase64Encoded": False}


def entry(app: LazyApp) -> Invocation:
    """A Lambda function around `app`."""
    return Function(app)


handler = entry(LazyApp(serverless=True))
