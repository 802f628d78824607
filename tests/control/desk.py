"""Replicas with control on, holds of tool calls, and the one who answers them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2
from websockets.exceptions import ConnectionClosed

from tests.app.duplex import Duplex, Frame, command, duplex
from tests.app.replica import Event, Replica, fresh_prefix, running
from tests.servers import AnyServer

TOKEN = "correct-horse"
RESPOND = "control.attention.respond"
INSTRUCT = "x.kimi-code.control.instruct"
TERMINALS = ("attention.resolved", "attention.timeout")

_calls = itertools.count(1)


@contextlib.asynccontextmanager
async def replicas(server: AnyServer | str, count: int = 2, **settings: Any) -> AsyncIterator[list[Replica]]:
    """`count` replicas of one deployment that hold calls and take instructions."""
    made: dict[str, Any] = {
        "redis_prefix": fresh_prefix(),
        "token": TOKEN,
        "headers": {"authorization": f"Bearer {TOKEN}"},
        "control": True,
        "instruct": True,
        "attention_timeout_ms": 20_000,
    }
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(server, **made | settings)) for _ in range(count)]


@dataclass
class Hold:
    """A tool call whose hook is under way."""

    call: str
    session: str
    task: asyncio.Task[httpx2.Response]

    async def verdict(self, seconds: float = 20) -> str | None:
        """The reason of a denial; None where the agent may go on."""
        async with asyncio.timeout(seconds):
            response = await asyncio.shield(self.task)
        assert response.status_code == 200
        answer = response.json()
        if answer == {}:
            return None
        output = answer["hookSpecificOutput"]
        assert answer == {"hookSpecificOutput": output}
        assert output["hookEventName"] == "PreToolUse"
        assert output["permissionDecision"] == "deny"
        reason = output["permissionDecisionReason"]
        assert isinstance(reason, str)
        assert reason
        return reason

    async def hang_up(self) -> None:
        """The client of the hook goes away."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@dataclass
class Desk:
    """Someone who watches a deployment through one replica and answers."""

    connection: Duplex
    sent: list[Frame] = field(default_factory=list)
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def frames(self) -> list[Frame]:
        """Everything that came in."""
        return self.connection.frames

    async def pump(self) -> None:
        """Read until the connection ends, for however many who wait."""
        with contextlib.suppress(ConnectionClosed):
            async for text in self.connection.connection:
                assert isinstance(text, str)
                self.connection.texts.append(text)
                self.connection.frames.append(json.loads(text))
                for future in self._waiting:
                    if not future.done():
                        future.set_result(None)

    async def wait(self, wanted: Callable[[Frame], bool], seconds: float = 20) -> Frame:
        """The first frame, of those that are here too, that is as wanted."""
        seen = 0
        async with asyncio.timeout(seconds):
            while True:
                for frame in self.frames[seen:]:
                    seen += 1
                    if wanted(frame):
                        return frame
                future = asyncio.get_running_loop().create_future()
                self._waiting.add(future)
                try:
                    await future
                finally:
                    self._waiting.discard(future)

    async def request(self, call: str, seconds: float = 20) -> Frame:
        """The `attention.requested` of a held call."""
        asked = await self.wait(
            lambda frame: frame["type"] == "tool.requested" and frame["data"]["tool"]["call_id"] == call,
            seconds,
        )
        return await self.wait(
            lambda frame: frame["type"] == "attention.requested" and frame.get("cause") == asked["id"],
            seconds,
        )

    async def send(self, made: Frame) -> Frame:
        self.sent.append(made)
        await self.connection.send(made)
        return made

    async def ack(self, made: Frame, seconds: float = 20) -> Frame:
        """The acknowledgement, or the error frame, of a command."""
        return await self.wait(
            lambda frame: (
                frame.get("cause") == made["id"]
                and frame["type"] in ("control.accepted", "control.rejected", "error")
            ),
            seconds,
        )

    async def answer(self, request: Frame, **answer: Any) -> Frame:
        """Answer a request; the acknowledgement."""
        made = command(request["session"], RESPOND, subject=request["id"], data={"answer": answer})
        return await self.ack(await self.send(made))

    async def instruct(self, session: str, text: Any) -> Frame:
        made = command(session, INSTRUCT, data={"text": text})
        return await self.ack(await self.send(made))

    async def terminal(self, request: Frame, seconds: float = 20) -> Frame:
        """The one event that ends a request."""
        return await self.wait(
            lambda frame: frame["type"] in TERMINALS and frame.get("subject") == request["id"], seconds
        )


@contextlib.asynccontextmanager
async def desk(replica: Replica | str, token: str = TOKEN) -> AsyncIterator[Desk]:
    """A connected desk that sees everything from now on."""
    address = replica if isinstance(replica, str) else replica.url
    async with duplex(address, token, max_queue=None) as connection:
        await connection.hello("consumer")
        await connection.subscribe("all")
        made = Desk(connection)
        task = asyncio.create_task(made.pump())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Hooked(Protocol):
    """Something that takes hooks: a replica in this process, or one of its own."""

    async def hook(self, event: str, session: str = ..., **fields: Any) -> httpx2.Response: ...


def hold(
    replica: Hooked, session: str = "s1", tool: str = "Bash", call: str | None = None, **more: Any
) -> Hold:
    """A tool call begins."""
    call = call or f"call_{next(_calls)}"
    fields = {"tool_name": tool, "tool_call_id": call, "tool_input": {"command": "make deploy"}, **more}
    return Hold(call, session, asyncio.create_task(replica.hook("PreToolUse", session, **fields)))


def about(events: list[Event], request: Frame) -> list[str]:
    """What the stream says about a request, in order."""
    return [
        event["type"].removeprefix("attention.") + _more(event)
        for event in events
        if event.get("subject") == request["id"] or event["id"] == request["id"]
    ]


def _more(event: Event) -> str:
    data = event.get("data", {})
    if event["type"] == "attention.answered":
        return f" {data['answer']['option']}"
    return f" {data['resolution']}" if event["type"] == "attention.resolved" else ""


def dumped(frame: Frame) -> str:
    return json.dumps(frame, sort_keys=True)
