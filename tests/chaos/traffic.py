"""Mixed traffic of many agents: hooks as the shim sends them, batches of an ACP tee and of a web link.

Each hook has a mark that comes back in its event, so that a hook whose answer said `yes` can be looked for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

JSON = dict[str, Any]
HOOK_SECONDS = 5.0
"""The shim's own deadline: the longest an agent waits for a hook, whatever happens."""


class Ledger:
    """What was answered: marks by `yes`, `no` and `unknown` (no answer counts as unknown)."""

    def __init__(self) -> None:
        self.marks: dict[str, set[str]] = {"yes": set(), "no": set(), "unknown": set()}
        self.waits: list[float] = []
        self.batches: Counter[str] = Counter()

    def add(self, stored: str, mark: str, seconds: float) -> None:
        self.marks[stored].add(mark)
        self.waits.append(seconds)

    def wait(self, share: float) -> float:
        """A quantile of the time an agent waited, in milliseconds."""
        return 1000 * sorted(self.waits)[min(len(self.waits) - 1, int(share * len(self.waits)))]


async def post(url: str, path: str, body: bytes, media_type: str) -> tuple[int, dict[str, str], bytes]:
    """One POST on a connection of its own, as the shim makes it. Raises OSError, ValueError, TimeoutError."""
    async with asyncio.timeout(HOOK_SECONDS):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {media_type}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}, content


class Agent:
    """One hook session, whose hooks come one after the other, as an agent sends those it waits for."""

    def __init__(self, name: str, url: str, ledger: Ledger, generator: random.Random) -> None:
        self.session = name
        self._url = url
        self._ledger = ledger
        self._random = generator
        self._numbers = itertools.count()

    async def hook(self, event: str, mark: str, **more: Any) -> str:
        """Send one hook; what its answer said."""
        payload = {"hook_event_name": event, "session_id": self.session, **more}
        began = time.monotonic()
        stored = "unknown"
        try:
            status, headers, _ = await post(
                self._url, "/hook", json.dumps(payload).encode(), "application/json"
            )
            if status == 200:
                stored = headers.get("aep-stored", "unknown")
        except (OSError, ValueError, IndexError, TimeoutError):
            pass
        self._ledger.add(stored, mark, time.monotonic() - began)
        return stored

    async def turn(self, pause: Callable[[], Any]) -> None:
        """A prompt, a tool call with or without an approval, a remark, the end."""
        number = next(self._numbers)
        mark = f"{self.session}-{number}"
        await self.hook("UserPromptSubmit", f"prompt:{mark}", prompt="go", is_steer=False)
        await pause()
        call = {"tool_name": "Bash", "tool_call_id": f"call:{mark}", "tool_input": {"command": "ls"}}
        await self.hook("PreToolUse", f"call:{mark}", **call)
        await pause()
        if self._random.random() < 0.4:
            asks = {**call, "turn_id": number, "action": "run", "display": "ls?"}
            await self.hook("PermissionRequest", f"ask:{mark}", **asks)
            await pause()
            # An interrupted turn has no answer; its request must get a terminal all the same.
            if self._random.random() < 0.7:
                await self.hook("PermissionResult", f"answer:{mark}", **asks, decision="approved")
                await pause()
        await self.hook("PostToolUse", f"done:{mark}", **call, tool_output="ok")
        await pause()
        await self.hook("Notification", f"note:{mark}", notification_type=f"note:{mark}", title="t")
        await pause()
        end = "Stop" if self._random.random() < 0.8 else "Interrupt"
        more = {"stop_hook_active": False} if end == "Stop" else {"turn_id": number, "reason": "cancelled"}
        await self.hook(end, f"end:{mark}", **more)

    async def end(self) -> None:
        """SessionEnd, until an answer says that it is stored."""
        for _ in range(40):
            if await self.hook("SessionEnd", f"close:{self.session}", reason="exit") == "yes":
                return
            await asyncio.sleep(0.25)
        raise AssertionError(f"the end of {self.session} could not be stored")


class Link:
    """A tee or a web link: numbered lines in order, a batch again until it is taken."""

    def __init__(self, url: str, path: str, ledger: Ledger) -> None:
        self._url = url
        self._path = path
        self._ledger = ledger

    async def deliver(self, lines: list[JSON]) -> None:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        until = time.monotonic() + 60
        while True:
            try:
                status, _, answer = await post(self._url, self._path, body, "application/x-ndjson")
            except (OSError, ValueError, IndexError, TimeoutError):
                status, answer = 0, b""
            if 200 <= status < 300:
                self._ledger.batches["taken"] += 1
                return
            self._ledger.batches["repeated"] += 1
            assert status in (0, 408, 429) or status >= 500, (status, answer)
            assert time.monotonic() < until, "a batch was not taken for a minute"
            await asyncio.sleep(0.1)


class Editor:
    """An ACP session behind a tee."""

    def __init__(self, name: str, url: str, ledger: Ledger) -> None:
        self.session = name
        self.turns = 0
        self._link = Link(url, "/frames/acp", ledger)
        self._cursor = itertools.count(1)
        self._ids = itertools.count(1)

    def _line(self, direction: str, frame: JSON) -> JSON:
        return {
            "n": next(self._cursor),
            "t": time.time_ns() // 1_000_000,
            "dir": direction,
            "conn": f"conn-{self.session}",
            "frame": frame,
        }

    def _exchange(self, method: str, params: JSON, result: JSON) -> list[JSON]:
        number = next(self._ids)
        ask = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return [self._line("c2a", ask), self._line("a2c", {"jsonrpc": "2.0", "id": number, "result": result})]

    async def begin(self) -> None:
        await self._link.deliver(self._exchange("session/new", {"cwd": "/p"}, {"sessionId": self.session}))

    async def turn(self) -> None:
        prompt = {"sessionId": self.session, "prompt": [{"type": "text", "text": "hi"}]}
        self.turns += 1
        await self._link.deliver(self._exchange("session/prompt", prompt, {"stopReason": "end_turn"}))

    async def end(self) -> None:
        await self._link.deliver(self._exchange("session/close", {"sessionId": self.session}, {}))


class Page:
    """A `kimi web` session behind a link, in primary mode."""

    def __init__(self, name: str, url: str, ledger: Ledger) -> None:
        self.session = name
        self.turns = 0
        self._link = Link(url, "/frames/web?mode=primary", ledger)
        self._seq = itertools.count(1)

    def _frame(self, kind: str, **payload: Any) -> JSON:
        return {
            "type": kind,
            "seq": next(self._seq),
            "epoch": "ep_chaos",
            "session_id": self.session,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "payload": {"type": kind, "sessionId": self.session, "agentId": "main", **payload},
        }

    async def turn(self) -> None:
        number, self.turns = self.turns, self.turns + 1
        call = f"web-{number}"
        frames = [
            self._frame("turn.started", turnId=number, origin={"kind": "user"}),
            self._frame("tool.call.started", turnId=number, toolCallId=call, name="Bash", args={}),
            self._frame("tool.result", turnId=number, toolCallId=call, output="ok", isError=False),
            self._frame("turn.ended", turnId=number, reason="completed", durationMs=5),
        ]
        await self._link.deliver(frames)
