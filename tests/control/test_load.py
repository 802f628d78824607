"""Two thousand held calls in one process: what they weigh, how soon they wake, and that nobody else waits."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.app.duplex import command
from tests.control.desk import RESPOND, TOKEN, Desk, desk
from tests.control.fleet import Node, fleet
from tests.servers import OwnServer

pytestmark = pytest.mark.chaos

HELD = 2_000
WAKES = 200
OPENED_AT_ONCE = 50


class Line:
    """A keep-alive connection that posts hooks, as lean as can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.replied = 0.0

    @classmethod
    async def open(cls, url: str) -> Line:
        parts = urlsplit(url)
        assert parts.hostname
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, event: str, session: str, **fields: Any) -> Any:
        """Post a hook and read the whole reply."""
        body = json.dumps({"hook_event_name": event, "session_id": session, **fields}).encode()
        head = (
            f"POST /hook HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        at = answer.lower().index(b"content-length: ") + 16
        text = await self._reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
        self.replied = time.perf_counter()
        return json.loads(text)

    def close(self) -> None:
        self._writer.close()


async def test_two_thousand_held_calls(own_server: OwnServer) -> None:
    async with fleet(own_server, 1, AEP_ATTENTION_TIMEOUT_MS="400000") as (node,), desk(node.url) as human:
        before_rate = await best(node)
        before_memory, before_links = memory(node), links(own_server)
        lines: dict[str, Line] = {}
        tasks: dict[str, asyncio.Task[Any]] = {}
        for start in range(0, HELD, OPENED_AT_ONCE):
            for number in range(start, start + OPENED_AT_ONCE):
                name = f"held{number}"
                lines[name] = await Line.open(node.url)
                call = {
                    "tool_name": "Bash",
                    "tool_call_id": f"call_{name}",
                    "tool_input": {"command": "x" * 300},
                }
                tasks[name] = asyncio.create_task(lines[name].post("PreToolUse", name, **call))
            await asked(human, start + OPENED_AT_ONCE)
        assert (await node.figures())["held"] == HELD
        each = (memory(node) - before_memory) / HELD
        held_links = links(own_server)
        assert held_links - before_links < 10, "no connection to Redis for each hold"

        held_rate = await best(node)
        requests = {
            frame["session"]: frame for frame in human.frames if frame["type"] == "attention.requested"
        }
        names = list(tasks)
        wakes = []
        for name in names[:WAKES]:
            began = time.perf_counter()
            await human.send(denial(requests[name]))
            reply = await asyncio.wait_for(tasks[name], 30)
            assert reply["hookSpecificOutput"]["permissionDecision"] == "deny"
            wakes.append(lines[name].replied - began)
        began = time.perf_counter()
        for name in names[WAKES:]:
            await human.send(denial(requests[name]))
        replies = await asyncio.wait_for(asyncio.gather(*(tasks[name] for name in names[WAKES:])), 120)
        everything = time.perf_counter() - began
        assert all(reply["hookSpecificOutput"]["permissionDecision"] == "deny" for reply in replies)
        for line in lines.values():
            line.close()
        cuts = statistics.quantiles(wakes, n=100)
        print(
            f"\n{HELD} held: {each / 1024:.1f} KiB each, Redis connections {before_links} → {held_links};"
            f" ingest {before_rate:.0f}/s before, {held_rate:.0f}/s while held;"
            f" wake p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms;"
            f" {HELD - WAKES} at once in {everything:.1f} s"
        )


def denial(request: dict[str, Any]) -> dict[str, Any]:
    data = {"answer": {"option": "deny"}}
    made = command(request["session"], RESPOND, subject=request["id"], data=data)
    return made | {"id": f"{os.urandom(8).hex()}"}


async def asked(human: Desk, count: int) -> None:
    async with asyncio.timeout(60):
        while sum(frame["type"] == "attention.requested" for frame in human.frames) < count:
            await asyncio.sleep(0.02)


async def best(node: Node) -> float:
    """The best of a few rounds: the machine has other things to do."""
    return max([await ingest(node, 1_000) for _ in range(4)])


async def ingest(node: Node, count: int) -> float:
    """Events of other sessions a second, sixteen at a time."""
    lines = [await Line.open(node.url) for _ in range(16)]

    async def some(number: int, line: Line) -> None:
        for turn in range(count // 16):
            event = "PostToolUse" if turn % 2 else "Notification"
            await line.post(
                event, f"other{number}", tool_name="Bash", tool_call_id=f"c{turn}", tool_output="ok"
            )

    began = time.perf_counter()
    await asyncio.gather(*(some(number, line) for number, line in enumerate(lines)))
    took = time.perf_counter() - began
    for line in lines:
        line.close()
    return count / took


def memory(node: Node) -> int:
    """Resident bytes of the process."""
    path = Path(f"/proc/{node.process.process.pid}/statm")
    if not path.exists():
        pytest.skip("memory is read from /proc")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def links(server: OwnServer) -> int:
    """Connections to Redis."""
    return len(str(server.run("CLIENT", "LIST")).split("id=")) - 1
