"""What a process makes of its settings before it does anything: the client of its Redis, and its posture."""

from __future__ import annotations

import asyncio

from handlers.aep.capture import Posture
from handlers.aep.redaction import Redactor
from handlers.errors import SettingsError
from handlers.settings import Settings
from state.connection import Client, Limits, connect
from state.errors import Refused, StateError, UnsafeServer
from state.inspection import demand_safe

EXAMINE_SECONDS = 2.0
"""How long a server may take to say what it is."""


def client(settings: Settings) -> Client:
    """A client of the configured Redis. Raises `SettingsError` for a URL that is none."""
    seconds = settings.hook_timeout_ms / 1000
    try:
        # A confirmation that takes most of a hook's time would leave none for the commit itself.
        limits = Limits(
            write=seconds, connect=seconds, wait_replicas=settings.redis_wait, wait=min(0.1, seconds * 0.4)
        )
        return connect(settings.redis_url or "", limits)
    except ValueError as error:
        raise SettingsError("AEP_REDIS_URL", str(error)) from None


async def trusted(client: Client) -> list[str]:
    """What is worth a warning about the server. One that tells nothing of itself is not questioned.

    Raises StateError while it does not answer, UnsafeServer for one that must not be used.
    """
    if client.imitation:
        return []
    try:
        return await demand_safe(client)
    except Refused:
        return []


async def preflight(settings: Settings) -> None:
    """Raise SettingsError for a Redis that answers, and that throws state away or is too old."""
    probe = client(settings)
    try:
        async with asyncio.timeout(EXAMINE_SECONDS):
            await trusted(probe)
    except UnsafeServer as error:
        raise SettingsError("AEP_REDIS_URL", str(error)) from None
    except (StateError, TimeoutError):
        pass
    finally:
        await probe.close()


def posture(settings: Settings) -> Posture:
    """What may leave this machine. Our own tokens are secrets too."""
    tokens = tuple(token for token in (settings.token, settings.control_token, settings.relay_token) if token)
    redactor = Redactor(secrets=settings.secrets + tokens, homes=settings.homes, pii=settings.pii)
    return Posture(
        capture=settings.capture,
        attention=settings.capture_attention,
        redactor=redactor,
        acp_deltas=settings.acp_deltas,
    )
