"""Bodies of those who hand something in, within the limits of their token."""

from __future__ import annotations

import math

from starlette.requests import Request

from handlers.body import read_body
from handlers.errors import Refused
from handlers.service import Service
from handlers.tokens import Principal


async def admitted_body(service: Service, request: Request, principal: Principal) -> bytes:
    """The body of a POST of events or frames, charged by its lines.

    Raises `Refused`: 429 with `Retry-After` while the token is over its rate, and as `receive_body` does.
    """
    now = service.clock.steady()
    wait = service.rates.wait(principal, now)
    if wait:
        raise Refused(
            429,
            "too-many-events",
            "this token is over its rate; send it again later",
            retry_after=math.ceil(wait),
        )
    body = await read_body(request, body_limit(service, principal))
    service.rates.take(principal, now, max(1, body.count(b"\n")))
    return body


def body_limit(service: Service, principal: Principal) -> int:
    """The largest body that this principal may send, in bytes."""
    most = service.settings.max_body
    return most if principal.body is None else min(principal.body, most)
