"""Hostile input: never a 500, never an invalid event, never a stream that later readers cannot read."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from handlers.aep.validation import check_event
from tests.app.replica import Replica, running
from tests.mapping.payloads import HOOKS
from tests.servers import AnyServer

JSON = {"content-type": "application/json"}
WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1e308,
    "",
    "x" * 10_000,
    "\ud800",
    "\u0000\n\r\"'\\",
    [],
    {},
    [[[]]],
]
WRONG += [{"": ""}, {"__proto__": {"a": 1}}, ["\udfff"], {"name": {"deep": [1, {"er": None}]}}]


async def valid(replica: Replica) -> int:
    """Every event that is held is valid, and a consumer can read on behind it; how many there are."""
    held = await replica.replay()
    assert held.comments[-1] == "replay-complete"
    for event in held.events:
        assert check_event(event) == [], event
    return len(held.events)


async def post(replica: Replica, body: bytes) -> int:
    response = await replica.client.post("/hook", content=body, headers=JSON)
    assert response.status_code < 500, (response.status_code, body[:200])
    if response.status_code == 200:
        assert response.headers["aep-stored"] == "yes", body[:200]
    return response.status_code


def dumped(payload: Any) -> bytes:
    return json.dumps(payload).encode()


@pytest.mark.slow
async def test_wrong_types_in_every_field(replica: Replica) -> None:
    bodies = [
        dumped({**payload, name: value}) for payload in HOOKS.values() for name in payload for value in WRONG
    ]
    assert len(bodies) > 500
    for start in range(0, len(bodies), 50):
        await asyncio.gather(*(post(replica, body) for body in bodies[start : start + 50]))
    assert await valid(replica) > 500
    assert replica.service.counters["hooks.failed"] == 0
    assert replica.service.counters["moments.unstored.defect"] == 0


@pytest.mark.parametrize(
    "session",
    [
        "a\nb",
        "a\r\nid: x\n\n",
        'q"uo"te',
        "c:o:l:o:n",
        "x" * 10_000,
        "\u2028\u0085",
        "../../etc",
        "%0a",
        "\ud800",
        "ж",
    ],
)
async def test_ids_that_try_to_break_out(replica: Replica, session: str) -> None:
    for event in (
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "PermissionRequest",
        "SubagentStart",
        "Stop",
    ):
        payload = {
            "hook_event_name": event,
            "session_id": session,
            "tool_name": session,
            "tool_call_id": session,
            "agent_name": session,
            "turn_id": session,
        }
        assert await post(replica, dumped(payload)) == 200
    assert await valid(replica) >= 5


@pytest.mark.parametrize(
    "name", ["", "Stop ", "stop", "ünï", "A" * 5_000, "x.y", "../..", "\n", "\ud800", "日本"]
)
async def test_unknown_events(replica: Replica, name: str) -> None:
    assert await post(replica, dumped({"hook_event_name": name, "session_id": "s"})) == 200
    held = await replica.replay()
    assert held.events[0]["type"].startswith("x.kimi-code.")
    assert await valid(replica) == 1


async def test_damaged_bodies(replica: Replica) -> None:
    generator = random.Random(3)
    whole = dumped(HOOKS["PermissionRequest"])
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):
            place = generator.randrange(len(body))
            kind = generator.randrange(3)
            if kind == 0:
                body[place] = generator.randrange(256)
            elif kind == 1:
                del body[place:]
            else:
                body[place:place] = bytes([generator.randrange(256)])
            if not body:
                break
        await post(replica, bytes(body))
    await post(replica, b"\xff\xfe" + whole)
    await post(replica, b'{"hook_event_name":"Stop","session_id":"\xff\xc0\x80"}')
    await valid(replica)


async def test_deep_nesting(replica: Replica) -> None:
    for depth in (50, 150, 250, 1_000, 100_000):
        value = b"[" * depth + b"]" * depth
        body = (
            b'{"hook_event_name":"PreToolUse","session_id":"s","tool_name":"T","tool_input":' + value + b"}"
        )
        assert await post(replica, body) in {200, 400}
    await valid(replica)


async def test_a_large_payload_at_every_capture_level(redis_server: AnyServer) -> None:
    from handlers.aep.levels import Capture

    for capture in (Capture.METADATA, Capture.REDACTED, Capture.FULL):
        async with running(redis_server, capture=capture) as replica:
            prompt = [{"type": "text", "text": "y" * 20_000_000}]
            payload = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": prompt}
            assert await post(replica, dumped(payload)) == 200
            tool = {
                "hook_event_name": "PostToolUse",
                "session_id": "s",
                "tool_name": "Read",
                "tool_call_id": "c",
                "tool_output": "z" * 5_000_000,
            }
            assert await post(replica, dumped(tool)) == 200
            assert await valid(replica) == 2
