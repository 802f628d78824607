"""Gates when processes die, freeze or restart: one terminal each, in seconds; nothing allowed by accident."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.replica import Event
from tests.control.desk import TERMINALS, TOKEN, about, desk
from tests.control.fleet import Node, fleet
from tests.servers import OwnServer

pytestmark = pytest.mark.chaos

SHIM = Path(__file__).parents[2] / "deploy" / "shim" / "kimi_hook.py"
BOUND_SECONDS = 12
"""Within which a gate whose holder died has its terminal: 4 s of liveness, 2 s of doubt, a look a second."""


def terminals(events: list[Event], request: Event) -> list[str]:
    return [
        event["type"] for event in events if event["type"] in TERMINALS and event["subject"] == request["id"]
    ]


async def settled(node: Node, requests: list[Event], seconds: float) -> float:
    """Wait until every request has its terminal in what is held; how long that took."""
    start = time.monotonic()
    while True:
        events = await node.events()
        if all(terminals(events, request) for request in requests):
            return time.monotonic() - start
        assert time.monotonic() - start < seconds, "a request is left without its terminal"
        await asyncio.sleep(0.2)


async def test_a_killed_holder_leaves_no_gate(own_server: OwnServer) -> None:
    async with fleet(own_server, 3) as (dying, other, third), desk(other.url) as human:
        held = [dying.hold(f"dead{number}") for number in range(30)]
        alive = third.hold("alive")
        requests = [await human.request(one.call) for one in held]
        kept = await human.request(alive.call)
        acks = [human.answer(request, option="deny") for request in requests[:10]]
        racing = asyncio.gather(*acks)
        dying.process.kill()
        decided = await racing
        took = await settled(other, requests, BOUND_SECONDS)
        print(f"\nterminals of 30 gates of a killed holder after {took:.1f} s")
        for one in held:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in held), return_exceptions=True)
        await asyncio.sleep(2)
        events = await third.events()
        for request in requests:
            assert len(terminals(events, request)) == 1
        for request, ack in zip(requests, decided, strict=False):
            story = about(events, request)
            if "answered deny" in story:
                assert ack["type"] == "control.accepted"
                assert story == ["requested", "answered deny", "resolved answered"]
            else:
                assert story == ["requested", "resolved dismissed"]
        late = await human.answer(requests[-1], option="allow")
        assert (late["data"]["reason"], late["data"]["code"]) == ("refused", "closed")
        # A living holder is not buried with the dead.
        assert terminals(events, kept) == []
        await human.answer(kept, option="deny")
        assert await alive.verdict() is not None


async def test_a_killed_shim_closes_its_gate_at_once(own_server: OwnServer) -> None:
    async with fleet(own_server, 2) as (one, other), desk(other.url) as human:
        for number, signal_ in enumerate((signal.SIGKILL, signal.SIGTERM)):
            call = f"shim_{number}"
            payload = {
                "hook_event_name": "PreToolUse",
                "session_id": "s1",
                "tool_name": "Bash",
                "tool_call_id": call,
                "tool_input": {},
            }
            command = [sys.executable, "-I", "-S", str(SHIM), one.url + "/hook", "--timeout", "30000"]
            shim = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"AEP_TOKEN": TOKEN},
            )
            assert shim.stdin is not None
            assert shim.stdout is not None
            shim.stdin.write(json.dumps(payload).encode())
            shim.stdin.close()
            request = await human.request(call)
            start = time.monotonic()
            shim.send_signal(signal_)
            terminal = await human.terminal(request, 5)
            print(f"\nterminal {1000 * (time.monotonic() - start):.0f} ms after {signal_.name} of the shim")
            assert terminal["data"]["resolution"] == "dismissed"
            assert await shim.stdout.read() == b""
            await shim.wait()


async def test_a_hold_survives_a_restart_of_redis_with_its_data(own_server: OwnServer) -> None:
    async with fleet(own_server, 2) as (one, other), desk(other.url) as human:
        await one.hook("UserPromptSubmit")
        held = [one.hold(), one.hold("s2")]
        requests = [await human.request(hold.call) for hold in held]
        own_server.kill()
        await asyncio.sleep(1)
        own_server.start()
        ack = await retried(human.answer, requests[0], option="deny", text="not now")
        assert ack["type"] == "control.accepted"
        assert await held[0].verdict() == "not now"
        await asyncio.sleep(6)
        assert not held[1].task.done(), "nobody is accused for a Redis that was away"
        await human.answer(requests[1], option="allow")
        assert await held[1].verdict() is None
        events = await other.events()
        assert about(events, requests[0]) == ["requested", "answered deny", "resolved answered"]
        assert about(events, requests[1]) == ["requested", "answered allow", "resolved answered"]


async def test_without_redis_the_agent_is_let_go_in_its_time(own_server: OwnServer) -> None:
    async with (
        fleet(own_server, 2, AEP_ATTENTION_TIMEOUT_MS="4000") as (one, other),
        desk(other.url) as human,
    ):
        held = [one.hold(f"s{number}") for number in range(5)]
        requests = [await human.request(hold.call) for hold in held]
        await human.answer(requests[0], option="allow")
        assert await held[0].verdict() is None
        start = time.monotonic()
        own_server.kill()
        assert await asyncio.gather(*(hold.verdict() for hold in held[1:])) == [None] * 4
        waited = time.monotonic() - start
        assert waited < 4 + 3, "never past its window"
        own_server.start()
        took = await settled(other, requests, BOUND_SECONDS)
        print(f"\nlet go after {waited:.1f} s without Redis, terminals {took:.1f} s after its return")
        events = await other.events()
        for request in requests[1:]:
            assert len(terminals(events, request)) == 1
            assert "answered allow" not in about(events, request)


async def test_a_redis_that_lost_everything_frees_what_is_held(own_server: OwnServer) -> None:
    async with fleet(own_server, 2) as (one, other), desk(other.url) as human:
        held = [one.hold(f"s{number}") for number in range(5)]
        requests = [await human.request(hold.call) for hold in held]
        await human.answer(requests[0], option="deny")
        assert await held[0].verdict() is not None
        start = time.monotonic()
        own_server.flush()
        assert await asyncio.gather(*(hold.verdict() for hold in held[1:])) == [None] * 4
        print(f"\nfreed {time.monotonic() - start:.1f} s after FLUSHALL")
        assert time.monotonic() - start < BOUND_SECONDS
        # Every consumer was sent away to resume, so this is what it finds.
        await settled(other, requests[1:], BOUND_SECONDS)
        await asyncio.sleep(2)
        events = await other.events()
        for request in requests[1:]:
            assert about(events, request) == ["resolved dismissed"]
        assert about(events, requests[0]) == []


async def test_a_frozen_holder_is_overtaken_and_applies_nothing(own_server: OwnServer) -> None:
    async with fleet(own_server, 2) as (frozen, other), desk(other.url) as human:
        held = [frozen.hold("s1"), frozen.hold("s2")]
        requests = [await human.request(hold.call) for hold in held]
        frozen.process.process.send_signal(signal.SIGSTOP)
        try:
            ack = await human.answer(requests[0], option="allow")
            assert ack["type"] == "control.accepted"
            took = await settled(other, requests, BOUND_SECONDS)
            print(f"\nterminals of a frozen holder after {took:.1f} s")
            late = await human.answer(requests[1], option="deny")
            assert late["data"]["code"] == "closed"
        finally:
            frozen.process.process.send_signal(signal.SIGCONT)
        assert [await hold.verdict() for hold in held] == [None, None]
        await asyncio.sleep(1.5)
        events = await other.events()
        for request in requests:
            assert about(events, request) == ["requested", "resolved dismissed"]


async def test_a_redis_that_stands_still_accuses_nobody(own_server: OwnServer) -> None:
    async with fleet(own_server, 2) as (one, other), desk(other.url) as human:
        held = one.hold()
        request = await human.request(held.call)
        own_server.freeze()
        await asyncio.sleep(7)
        own_server.thaw()
        await asyncio.sleep(4)
        assert not held.task.done()
        ack = await retried(human.answer, request, option="deny")
        assert ack["type"] == "control.accepted"
        assert await held.verdict() is not None
        assert about(await other.events(), request) == ["requested", "answered deny", "resolved answered"]


async def retried(answer: Any, request: Event, **more: Any) -> Event:
    """Answer until it is neither refused for Redis nor lost on the way."""
    for _ in range(40):
        ack: Event = await answer(request, **more)
        if ack["type"] != "error":
            return ack
        assert ack["code"] in ("busy", "no-route")
        await asyncio.sleep(0.25)
    raise AssertionError("Redis did not come back")
