"""`GET /events`, `GET /.well-known/aep` and `POST /events` (AEP-0003 §3.2, §3.4)."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from handlers.admission import admitted_body
from handlers.aep.envelope import AEP_VERSION
from handlers.discovery import discovery
from handlers.errors import InvalidEvent, Refused
from handlers.head import head_of, media_type
from handlers.ingest import Posted
from handlers.responses import STORED, json_response
from handlers.service import Service
from handlers.tokens import Right
from state.errors import StateError


async def describe(request: Request) -> Response:
    """The discovery document. It tells nothing about anybody, so it needs no token."""
    return json_response(discovery(request.app.state.service))


async def post_events(request: Request) -> Response:
    """Take one event or an NDJSON batch: all of it or, when a line is wrong, nothing.

    202 with how many were taken and how many of them were new; 400 with the failing line, 401, 403, 413, 415;
    426 for another major version; 503 while Redis is away, and the sender may repeat without doubling.
    """
    service: Service = request.app.state.service
    principal = service.gate.admit(request.scope, Right.EMIT, posting=True)
    check_version(request.headers.get("aep-version"))
    kind = media_type(head_of(request.scope))
    if kind not in {"application/json", "application/x-ndjson"}:
        raise Refused(415, "unsupported-media-type", "events are application/json or application/x-ndjson")
    body = await admitted_body(service, request, principal)
    posted = read_events(service, body, kind == "application/x-ndjson")
    if isinstance(posted, Response):
        return posted
    try:
        new = await service.ingest.admit(principal, posted)
    except StateError:
        service.counters.add("posted.unstored", len(posted))
        raise Refused(
            503, "no-redis", "Redis does not answer; send the same events again later", stored="unknown"
        ) from None
    return json_response({"accepted": len(posted), "new": new}, 202, STORED)


def check_version(version: str | None) -> None:
    """Refuse another major version than ours (426 with the versions we speak), and none at all."""
    if version is None:
        raise Refused(400, "version-required", f"send the header AEP-Version: {AEP_VERSION}")
    if not re.fullmatch(r"0(\.\d{1,6})?", version.strip()):
        raise Refused(
            426, "version-unsupported", f"this endpoint speaks AEP {AEP_VERSION}", versions=[AEP_VERSION]
        )


def read_events(service: Service, body: bytes, lines: bool) -> list[Posted] | Response:
    """The checked events of a body, or the answer that refuses it whole."""
    parts = (
        [(number, line) for number, line in enumerate(body.split(b"\n")) if line.strip()]
        if lines
        else [(0, body)]
    )
    if len(parts) > service.settings.max_batch:
        raise Refused(
            413,
            "too-many-events",
            f"{len(parts)} events are more than AEP_MAX_BATCH ({service.settings.max_batch})",
        )
    posted = []
    for number, line in parts:
        try:
            entry = service.ingest.read(line.removesuffix(b"\r") if lines else line)
            if entry.is_command:
                raise InvalidEvent("commands flow only on /socket (AEP-0004 §4.1)", "control-not-here")
        except InvalidEvent as error:
            answer: dict[str, object] = {"error": error.code, "detail": str(error)}
            if lines:
                answer["line"] = number
            return json_response(answer, 403 if error.code == "forbidden-source" else 400)
        posted.append(entry)
    if not posted:
        raise Refused(400, "invalid-event", "no event in the body")
    return posted
