"""A link in the test's own event loop, quick to act."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deploy.web import link as linking
from deploy.web import outbox, sessions, watch
from deploy.web.link import Link, Options
from handlers.lifecycle.state import SessionState
from state.keys import SessionKey
from tests.app.replica import Replica

QUICK = {
    "_PORT_SECONDS": 0.05,
    "_LIST_SECONDS": 0.1,
    "_LIST_SECONDS_TOLD": 0.1,
    "_FIRST_PAUSE": 0.05,
    "_LONGEST_PAUSE": 0.3,
}


def quicken(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Shorten what a link waits for."""
    for name, value in {**QUICK, **more}.items():
        monkeypatch.setattr(watch, name, value)
    monkeypatch.setattr(linking, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(sessions, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "_LONGEST_PAUSE", 0.3)
    monkeypatch.setattr(outbox, "_FIRST_PAUSE", 0.05)


@contextlib.asynccontextmanager
async def linking_to(
    replica: Replica, home: Path, *, mode: str | None = "primary", **options: Any
) -> AsyncIterator[Link]:
    """A running link; it has stopped when the block ends."""
    link = Link(Options(home, replica.url, mode=mode, port=0, **options))
    task = asyncio.ensure_future(link.run())
    try:
        yield link
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def claimed(replica: Replica, session: str, seconds: float = 20) -> str:
    """Wait until the service knows which link has the session; that link's name."""
    async with asyncio.timeout(seconds):
        while True:
            record = await replica.service.sessions.load(SessionKey("testhost", session))
            link = None if record.state is None else SessionState.decode(record.state).web.link
            if link is not None:
                return link
            await asyncio.sleep(0.05)


async def told(replica: Replica, *types: str, seconds: float = 20) -> list[dict[str, Any]]:
    """Wait until events of these types, as often as named, are there; all events."""
    wanted = {kind: types.count(kind) for kind in types}
    async with asyncio.timeout(seconds):
        while True:
            events = (await replica.replay()).events
            kinds = [event["type"] for event in events]
            if all(kinds.count(kind) >= count for kind, count in wanted.items()):
                return events
            await asyncio.sleep(0.05)
