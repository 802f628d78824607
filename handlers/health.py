"""`GET /healthz` and `GET /readyz`: whether this process lives, and whether it can do its work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from handlers.responses import json_response
from handlers.service import Service


async def healthz(request: Request) -> Response:
    """Always 200 while the process answers. `ok` is false, with the reason, while Redis is not there.

    Without a right token only `ok` and `relay` are told: counts are knowledge about the team (AEP-0003 §8).
    """
    service: Service = request.app.state.service
    answer: dict[str, object] = {"ok": service.problem() is None, "relay": await service.relay_bound()}
    principal = service.gate.recognise(request.scope)
    if principal is not None:
        problem = service.problem()
        if problem is not None:
            answer["problem"] = problem
        answer |= service.figures()
        answer["clocks"] = await service.offsets()
    return json_response(answer)


async def readyz(request: Request) -> Response:
    """200 when Redis answers right now, 503 when not or while this process is stopping."""
    service: Service = request.app.state.service
    ready = not service.draining and await service.ping()
    return json_response({"ready": ready}, 200 if ready else 503)
