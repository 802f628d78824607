"""Batches of a tee, and a replica to post them to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx2

from tests.app.replica import Replica

JSON = dict[str, Any]
HEADERS = {"Content-Type": "application/x-ndjson"}


class Tee:
    """Numbers the lines of one connection as a tee does."""

    def __init__(self, conn: str = "c0", at_ms: int | None = None) -> None:
        self.conn = conn
        self.lines: list[JSON] = []
        self._at = at_ms

    def add(self, direction: str, frame: JSON) -> Tee:
        line = {"n": len(self.lines) + 1, "dir": direction, "conn": self.conn, "frame": frame}
        if self._at is not None:
            line["t"] = self._at + 10 * len(self.lines)
        self.lines.append(line)
        return self

    def ask(self, number: int, method: str, **params: Any) -> Tee:
        return self.add("c2a", {"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def answer(self, number: int, result: Any) -> Tee:
        return self.add("a2c", {"jsonrpc": "2.0", "id": number, "result": result})

    def turn(self, number: int, session: str, stop: str = "end_turn") -> Tee:
        """A prompt and its answer."""
        self.ask(number, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "hi"}])
        return self.answer(number, {"stopReason": stop})

    def permission(self, number: int, session: str) -> Tee:
        params = {"sessionId": session, "toolCall": {"toolCallId": "c1", "title": "Bash"}, "options": []}
        return self.add("a2c", {"id": number, "method": "session/request_permission", "params": params})

    def end(self) -> Tee:
        return self.add("end", {"exit": 0, "lost": 0})


def body(lines: Iterable[JSON]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def send(replica: Replica, lines: Iterable[JSON]) -> httpx2.Response:
    return await replica.client.post("/frames/acp", content=body(lines), headers=HEADERS)


async def post(replica: Replica, lines: Iterable[JSON]) -> dict[str, int]:
    """Post a batch that is taken; the cursors."""
    response = await send(replica, lines)
    assert response.status_code == 200, response.text
    cursors: dict[str, int] = response.json()["cursors"]
    return cursors
