"""A plain WebSocket client that speaks AEP frames, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

Frame = dict[str, Any]

_numbers = itertools.count(1)


def event(session: str, seq: int, kind: str = "progress.status", **more: Any) -> Frame:
    """An event of an emitter that is not ours."""
    return {
        "aep": "0.1",
        "id": f"e{next(_numbers)}",
        "type": kind,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "source": f"aep://elsewhere/agent/other/session/{session}",
        "agent": "other",
        "session": session,
        "seq": seq,
        **more,
    }


def command(session: str, kind: str = "control.attention.respond", **more: Any) -> Frame:
    """A command to whoever owns `session`."""
    made = event(session, 0, kind, source="aep://sender/agent/sender", agent="sender", **more)
    del made["seq"]
    return made


class Duplex:
    """One connection; what comes in is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[Frame] = []
        self.texts: list[str] = []

    async def send(self, frame: Frame | str | bytes) -> None:
        await self.connection.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    async def until(self, wanted: Callable[[Frame], bool], seconds: float = 20) -> Frame:
        """Read until a frame, one that was read before included, is as wanted."""
        for frame in self.frames:
            if wanted(frame):
                return frame
        async with asyncio.timeout(seconds):
            while True:
                text = await self.connection.recv()
                assert isinstance(text, str)
                self.texts.append(text)
                self.frames.append(json.loads(text))
                if wanted(self.frames[-1]):
                    return self.frames[-1]

    async def answer(self, kind: str, identity: str) -> Frame:
        """The answer to a request of ours: the wanted frame, or an error."""
        return await self.until(
            lambda frame: frame["type"] in (kind, "error") and frame.get("id") == identity
        )

    async def hello(self, role: str = "consumer", **more: Any) -> Frame:
        identity = {"agent": "tester", "instance": "t/1"}
        await self.send({"type": "hello", "versions": ["0.1"], "role": role, "identity": identity, **more})
        return await self.until(lambda frame: frame["type"] in ("hello", "error"))

    async def subscribe(self, identity: str = "s", **more: Any) -> Frame:
        await self.send({"type": "subscribe", "id": identity, **more})
        return await self.answer("subscribed", identity)

    async def events(self, count: int, seconds: float = 20) -> list[Frame]:
        """The first `count` events."""
        await self.until(lambda _: len(self.have()) >= count, seconds)
        return self.have()

    def have(self) -> list[Frame]:
        return [frame for frame in self.frames if "." in frame["type"]]


@contextlib.asynccontextmanager
async def duplex(url: str, token: str | None = None, **options: Any) -> AsyncIterator[Duplex]:
    """An open connection to `/socket`, without a hello."""
    address = url.replace("http://", "ws://") + "/socket" + (f"?access_token={token}" if token else "")
    async with connect(address, max_size=None, **options) as connection:
        yield Duplex(connection)
