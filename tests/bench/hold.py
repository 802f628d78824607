"""Held tool calls from outside: `python -m tests.bench.hold JSON`.

Takes `port`, `token`, `held`, `wakes`, `name` (of the sessions) and `floor` (whether it is the floor that
holds). Holds, prints a line, waits for one on standard input, then answers `wakes` of the calls one after the
other and prints `p50` and `p99` in seconds, from the sending of an answer to the whole reply of the held one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from itertools import count
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

_AT_ONCE = 64
_PATIENCE = 120.0


class Call:
    """One held request."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.request: dict[str, Any] = {}
        self.asked = asyncio.Event()
        self.answered = 0.0

    async def hold(self, wanted: dict[str, Any]) -> None:
        """Send it, and note when its reply is there."""
        body = json.dumps(
            {
                "hook_event_name": "PreToolUse",
                "session_id": self.session,
                "cwd": "/home/user/project",
                "client_type": "kimi_code_cli",
                "tool_name": "Bash",
                "tool_call_id": f"call_{self.session}",
                "tool_input": {"command": "make deploy; " + "echo a line of a script; " * 12},
            }
        )
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", wanted["port"])
        self.writer.write(head(wanted, "/hook", len(body)) + body.encode())
        await self.writer.drain()

    async def reply(self) -> None:
        """Read the reply."""
        answer = await self.reader.readuntil(b"\r\n\r\n")
        at = answer.lower().index(b"content-length: ") + 16
        body = await self.reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
        self.answered = time.perf_counter()
        if b"hookSpecificOutput" not in body:
            raise ValueError(f"a held call was answered with {body!r}")


def head(wanted: dict[str, Any], path: str, length: int) -> bytes:
    """The head of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{wanted['port']}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {wanted['token']}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


async def watch(desk: ClientConnection, calls: dict[str, Call]) -> None:
    """Note the request of each call as it is asked."""
    async for text in desk:
        frame = json.loads(text)
        if frame["type"] == "attention.requested" and frame["session"] in calls:
            call = calls[frame["session"]]
            call.request = frame
            call.asked.set()


def answer(request: dict[str, Any], number: int) -> str:
    """The command that denies it (AEP-0004 §3)."""
    return json.dumps(
        {
            "aep": "0.1",
            "id": f"bench-{request['id']}-{number}",
            "type": "control.attention.respond",
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "source": "aep://bench/agent/bench",
            "agent": "bench",
            "session": request["session"],
            "subject": request["id"],
            "data": {"answer": {"option": "deny"}},
        }
    )


async def run(wanted: dict[str, Any]) -> None:
    """Do it."""
    calls = {name: Call(name) for name in (f"{wanted['name']}-{n}" for n in range(wanted["held"]))}
    if wanted["floor"]:
        await _hold(calls, wanted)
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", wanted["port"])

        async def wake(call: Call, _: int) -> None:
            writer.write(head(wanted, f"/wake?session={call.session}", 0))
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)

        await _measure(calls, wanted, wake)
        return
    address = f"ws://127.0.0.1:{wanted['port']}/socket?access_token={wanted['token']}"
    async with connect(address, max_size=None, max_queue=None) as desk:
        identity = {"agent": "bench", "instance": "bench"}
        await desk.send(
            json.dumps({"type": "hello", "versions": ["0.1"], "role": "consumer", "identity": identity})
        )
        await desk.send(json.dumps({"type": "subscribe", "id": "all"}))
        watching = asyncio.create_task(watch(desk, calls))
        await asyncio.sleep(0.2)
        await _hold(calls, wanted)
        async with asyncio.timeout(_PATIENCE):
            for call in calls.values():
                await call.asked.wait()

        async def respond(call: Call, number: int) -> None:
            await desk.send(answer(call.request, number))

        await _measure(calls, wanted, respond)
        watching.cancel()


async def _hold(calls: dict[str, Call], wanted: dict[str, Any]) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Call) -> None:
        async with gate:
            await call.hold(wanted)

    await asyncio.gather(*[one(call) for call in calls.values()])


async def _measure(calls: dict[str, Call], wanted: dict[str, Any], wake: Any) -> None:
    print("held", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    numbers = count()
    took = []
    for call in list(calls.values())[: wanted["wakes"]]:
        began = time.perf_counter()
        replied = asyncio.create_task(call.reply())
        await wake(call, next(numbers))
        async with asyncio.timeout(_PATIENCE):
            await replied
        took.append(call.answered - began)
    took.sort()
    print(json.dumps({"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}), flush=True)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
