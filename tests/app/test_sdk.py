"""The official SDK against this endpoint, unchanged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aep_sdk import aio
from aep_sdk.consume import subscribe
from aep_sdk.control import ControlClient, NackError
from aep_sdk.errors import TransportError

from tests.app.processes import processes
from tests.app.replica import fresh_prefix
from tests.app.test_serve import post
from tests.servers import AnyServer

TOKEN = "correct-horse"


@pytest.fixture
def url(redis_server: AnyServer) -> Iterator[str]:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_HOOK_TIMEOUT_MS": "9000",
    }
    with processes(1, environment) as (process,):
        yield process.url


@pytest.fixture
def guarded(redis_server: AnyServer) -> Iterator[str]:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_TOKEN": TOKEN,
    }
    with processes(1, environment) as (process,):
        yield process.url


def start(url: str, session: str) -> None:
    assert post(url, {"hook_event_name": "SessionStart", "session_id": session})[1] == "yes"


def test_subscribe(url: str) -> None:
    start(url, "before")
    found: list[dict[str, Any]] = []
    comments: list[str] = []
    errors: list[Exception] = []
    three = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        found.append(event)
        if len(found) == 3:
            three.set()

    subscription = subscribe(url, on_event, from_="all", on_comment=comments.append, on_error=errors.append)
    try:
        start(url, "one")
        start(url, "two")
        assert three.wait(20)
    finally:
        subscription.close()
    assert [event["session"] for event in found] == ["before", "one", "two"]
    assert len(subscription.positions()) == 3
    assert "replay-complete" in comments
    assert not errors
    # The thread of the SDK sits in a read; something must come for it to see that it is closed.
    start(url, "last")
    subscription.join(20)


async def test_subscribe_asyncio(url: str) -> None:
    await asyncio.to_thread(start, url, "before")
    subscription = await aio.subscribe(url, from_="all")
    found = []
    await asyncio.to_thread(start, url, "after")
    async with asyncio.timeout(20):
        async for event in subscription:
            found.append(event["session"])
            if len(found) == 2:
                break
    await subscription.aclose() if hasattr(subscription, "aclose") else subscription.close()
    assert found == ["before", "after"]


async def test_subscribe_asyncio_replay_only(url: str) -> None:
    await asyncio.to_thread(start, url, "one")
    await asyncio.to_thread(start, url, "two")
    subscription = await aio.subscribe(url, from_="all", live=False)
    async with asyncio.timeout(20):
        assert [event["session"] async for event in subscription] == ["one", "two"]


def test_control_client(guarded: str) -> None:
    with pytest.raises(TransportError):
        ControlClient(guarded, agent="tester", host="here").connect()
    client = ControlClient(guarded, agent="tester", host="here", token=TOKEN)
    client.connect()
    try:
        assert client.roster() == []
        with pytest.raises(NackError) as refused:
            client.send("control.cancel", "nobody", data={"scope": "run"})
        assert "no-route" in str(refused.value)
    finally:
        client.close()
        assert client._reader_thread is not None
        client._reader_thread.join(20)
