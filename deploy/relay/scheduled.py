"""The relay where no process stays: an AWS Lambda function on a schedule, `deploy.relay.scheduled.handler`.

Each call posts what the feed holds since the last one (`AEP_RELAY_URL`, `AEP_RELAY_TOKEN`) and ends. Calls
may overlap: the lease lets one of them send.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deploy.relay.link import Link
from deploy.relay.transport import Timing, address_of
from handlers.errors import SettingsError
from handlers.service import Service
from handlers.settings import Settings

_RESERVE_SECONDS = 3.0


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answers whether all of it went out within the function's time limit. Raises `SettingsError`."""
    seconds = max(1.0, context.get_remaining_time_in_millis() / 1000 - _RESERVE_SECONDS)
    return asyncio.run(post(Settings.from_env(), seconds))


async def post(settings: Settings, seconds: float, timing: Timing | None = None) -> dict[str, Any]:
    """Send what is held now."""
    address = address_of(settings, posting=True)
    if address is None:
        raise SettingsError("AEP_RELAY_URL", "not set; it names the relay, such as https://relay.example.org")
    service = Service(settings, serverless=True)
    try:
        done = await Link(service, address, settings.relay_token, timing=timing).once(seconds)
        return {"done": done, "sent": service.counters["relay.sent"] + service.counters["relay.caught_up"]}
    finally:
        await service.stop()
