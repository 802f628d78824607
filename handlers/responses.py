"""Answers in JSON, and the one shape of every refusal."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from handlers.errors import Refused

STORED = {"AEP-Stored": "yes"}


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer that no cache keeps."""
    response = Response(orjson.dumps(value), status, media_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    if headers:
        response.headers.update(headers)
    return response


def refusal(error: Refused, request_id: bytes | None = None) -> Response:
    """`{"error": code, "detail": sentence}` with the refusal's status."""
    headers = {"WWW-Authenticate": 'Bearer realm="aep-kimi"'} if error.status == 401 else {}
    if request_id is not None:
        headers["X-Request-Id"] = request_id.decode("ascii")
    if "stored" in error.more:
        headers["AEP-Stored"] = str(error.more["stored"])
    if "retry_after" in error.more:
        headers["Retry-After"] = str(error.more["retry_after"])
    if error.status in {408, 413}:
        # The rest of the body is still on its way; only closing the connection stops it.
        headers["Connection"] = "close"
    return json_response({"error": error.code, "detail": error.detail, **error.more}, error.status, headers)


async def refused(request: Request, error: Exception) -> Response:
    """Starlette's handler for `Refused`."""
    assert isinstance(error, Refused)
    request.app.state.service.audit.refused(request.scope, error)
    return refusal(error)
