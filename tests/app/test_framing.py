"""Frames that are made once: what a client reads is the same with them and without."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Opcode
from websockets.protocol import CLIENT, Protocol

from handlers.framing import framed
from tests.app.duplex import duplex
from tests.app.replica import running
from tests.servers import AnyServer


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_a_frame_is_what_a_client_reads(size: int) -> None:
    payload = b"x" * size
    client = Protocol(CLIENT)
    client.receive_data(framed(payload))
    (frame,) = client.events_received()
    assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.TEXT, True, payload)


def test_what_is_no_utf8_is_replaced() -> None:
    assert framed('"é"'.encode()) == b'\x81\x04"\xc3\xa9"'
    assert framed(b'"\xed\xa0\x80"') == b"\x81\x0b" + b'"' + b"\xef\xbf\xbd" * 3 + b'"'


@pytest.mark.parametrize("plain", [False, True])
async def test_a_server_without_frames_of_ours_says_the_same(
    redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    if plain:
        config = uvicorn.Config

        def unframed(*args: Any, **more: Any) -> uvicorn.Config:
            return config(*args, **more | {"ws": WebSocketsSansIOProtocol})

        monkeypatch.setattr(uvicorn, "Config", unframed)
    async with running(redis_server) as replica, contextlib.AsyncExitStack() as stack:
        await replica.hook("SessionStart", "s1", source="startup")
        consumer = await stack.enter_async_context(duplex(replica.url))
        await consumer.hello()
        await consumer.subscribe("whole", **{"from": "all"})
        await consumer.events(1)
        await consumer.subscribe("bare", capture="none", filter={"type": "run.*"})
        for number in range(20):
            await replica.hook("UserPromptSubmit", "s1", prompt=f"é{number}" * 5_000, is_steer=False)
        # Both forms of each start of a run, and the end of the run before it in both.
        whole = await consumer.events(1 + 20 * 2 + 19 * 2)
        started = [event for event in whole if event["type"] == "run.started"]
        assert [event["seq"] for event in started] == sorted(event["seq"] for event in started)
        assert len({event["id"] for event in started}) == 20
        assert sum(event["capture"] == "none" for event in started) == 20
        assert replica.service.counters["events.out.socket"] == len(whole)
        await consumer.send({"type": "ping", "t": 5})
        assert (await consumer.until(lambda frame: frame["type"] == "pong"))["t"] == 5
