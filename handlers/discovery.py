"""What this endpoint can do, as `hello` and the discovery document say it (AEP-0003 §3.4, §4)."""

from __future__ import annotations

from handlers.aep.envelope import AEP_VERSION
from handlers.aep.levels import Capture, JSONObject
from handlers.service import Service


def capabilities(service: Service) -> JSONObject:
    """The shape that both share. `control.accepts` is what our own sessions take."""
    found: JSONObject = {
        "filters": ["attr-match"],
        "replay": {"buffer": service.settings.buffer, "all": True},
        "capture": [level.value for level in Capture],
        "experimental": {},
    }
    if not service.serverless:
        found["control"] = service.own_commands.declaration()
        found["roster"] = {}
    return found


def discovery(service: Service) -> JSONObject:
    """The document at `GET /events`."""
    endpoints: JSONObject = {"events": "/events", "stream": "/stream"}
    if not service.serverless:
        endpoints["socket"] = "/socket"
    return {
        "aep": [AEP_VERSION],
        "role": "collector",
        "endpoints": endpoints,
        "capabilities": capabilities(service),
    }
