"""One server of Kimi Code: connect, answer its heartbeat, notice what goes wrong, let go in time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from deploy.web.errors import Closing, LinkError, Lost, RestError, Strange, Unauthorized
from deploy.web.home import Address
from deploy.web.outbox import Outbox
from deploy.web.rest import Rest
from deploy.web.sessions import Figures, Sessions

log = logging.getLogger(__name__)

JSON = dict[str, Any]

FRAME_LIMIT = 128 * 1024 * 1024
"""Bytes of one frame; a larger one ends the connection, and a snapshot takes its place."""

_HELLO_SECONDS = 10.0
_ACK_SECONDS = 20.0
_SILENCE_SECONDS = 15.0
_PROBE_SECONDS = 10.0
_PORT_SECONDS = 1.0
_LIST_SECONDS = 2.0
_LIST_SECONDS_TOLD = 10.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0
_SOUND_SECONDS = 30.0


class Watch:
    """Watches one server until it is gone for good or `stop` is called."""

    def __init__(self, address: Address, token: Callable[[], str | None], outbox: Outbox) -> None:
        self.address = address
        self.figures = Figures()
        self._token = token
        self._outbox = outbox
        self._rest = Rest(address, token)
        self._socket: ClientConnection | None = None
        self._oversized = False
        self._acks: dict[str, asyncio.Future[JSON]] = {}
        self._numbers = itertools.count(1)
        self._heard = 0.0
        self._sessions = Sessions(self._rest, outbox, self.figures, self._request)
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> list[str]:
        """The sessions that the server has loaded."""
        return self._sessions.loaded

    @property
    def live(self) -> list[str]:
        """Those whose frames flow without a gap."""
        return self._sessions.live

    def write(self, write: JSON) -> None:
        """Do one thing that the service wants, and tell it what came of it."""
        task = asyncio.ensure_future(self._sessions.write(write))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Connect, and connect again, as long as the address is `wanted`."""
        pause = _FIRST_PAUSE
        try:
            while wanted():
                began = time.monotonic()
                least = 0.0
                self._oversized = False
                try:
                    await self._connected()
                except LinkError as error:
                    least = error.pause
                    self._say(_STATES.get(type(error), "lost"))
                finally:
                    self._socket = None
                    self._acks.clear()
                    self._sessions.forget(oversized=self._oversized)
                if time.monotonic() - began > _SOUND_SECONDS:
                    pause = _FIRST_PAUSE
                await self._rest_for(max(least, pause * random.uniform(0.7, 1.3)), wanted)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            for task in self._writes:
                task.cancel()
            await self._rest.close()

    async def _rest_for(self, seconds: float, wanted: Callable[[], bool]) -> None:
        """Stay away, unless another token appears or nobody wants us to come back."""
        until = time.monotonic() + seconds
        token = self._token()
        while (left := until - time.monotonic()) > 0:
            if not wanted() or self._token() != token:
                return
            await asyncio.sleep(min(0.25, left))

    async def _connected(self) -> None:
        """One connection, from the first look to its end."""
        try:
            await self._rest.recognise()
        except RestError:
            raise Lost from None
        token = self._token()
        if token is None:
            raise Unauthorized
        self.figures.connections += 1
        try:
            async with connect(
                self.address.stream,
                additional_headers={"Authorization": f"Bearer {token}"},
                user_agent_header="aep-kimi-web",
                proxy=None,
                compression=None,
                max_size=FRAME_LIMIT,
                ping_interval=None,
                open_timeout=_HELLO_SECONDS,
                close_timeout=1,
            ) as socket:
                self._socket = socket
                await self._together()
        except InvalidStatus as error:
            if error.response.status_code in (401, 403, 429):
                raise Unauthorized from None
            raise Strange from None
        except InvalidHandshake:
            raise Strange from None
        except ConnectionClosed as error:
            self._oversized = error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG
            raise Lost from None
        except (WebSocketException, OSError, TimeoutError):
            raise Lost from None

    async def _together(self) -> None:
        """All that goes on while connected; the first to fail ends it."""
        hello = asyncio.get_running_loop().create_future()
        self._acks["hello"] = hello
        works = [self._read(), self._converse(hello), self._look(), self._probe()]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _read(self) -> None:
        assert self._socket is not None
        self._heard = time.monotonic()
        async for raw in self._socket:
            self._heard = time.monotonic()
            await self._outbox.room()
            data = raw.encode() if isinstance(raw, str) else bytes(raw)
            try:
                frame = orjson.loads(data)
            except orjson.JSONDecodeError:
                frame = None
            kind = frame.get("type") if isinstance(frame, dict) else None
            if not isinstance(kind, str):
                self.figures.garbage += 1
                continue
            await self._take(kind, frame, data)
        raise Lost

    async def _take(self, kind: str, frame: JSON, raw: bytes) -> None:
        payload = frame.get("payload")
        body = payload if isinstance(payload, dict) else {}
        if kind == "ping":
            await self._send("pong", {"nonce": body.get("nonce")})
        elif kind == "server_hello":
            self._settle("hello", body)
        elif kind == "ack":
            self._settle(str(frame.get("id")), body)
        elif kind == "resync_required":
            self._sessions.resync_required(body)
        elif not frame.get("volatile"):
            self._sessions.take(kind, frame, body, raw)

    async def _converse(self, hello: asyncio.Future[JSON]) -> None:
        """Wait for the hello, then subscribe to whatever turns up."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                await hello
        except TimeoutError:
            self._say("mute")
            raise Lost from None
        self._say("live")
        await self._sessions.follow()

    async def _look(self) -> None:
        """See which sessions there are, and whether the server still takes connections."""
        listed = 0.0
        while True:
            if await self._rest.refused():
                raise Closing
            every = _LIST_SECONDS_TOLD if self._sessions.told else _LIST_SECONDS
            if time.monotonic() - listed >= every and self.figures.state == "live":
                listed = time.monotonic()
                with suppress(RestError):
                    self._sessions.listed(await self._rest.sessions())
            await asyncio.sleep(_PORT_SECONDS)

    async def _probe(self) -> None:
        """A stream that says nothing is asked whether it lives."""
        while True:
            await asyncio.sleep(_SILENCE_SECONDS / 3)
            if time.monotonic() - self._heard > _SILENCE_SECONDS:
                await self._request("subscribe", {"session_ids": []}, _PROBE_SECONDS)

    async def _request(self, kind: str, payload: JSON, seconds: float | None = None) -> JSON:
        """Send a frame and wait for its acknowledgement. Raises `Lost`."""
        name = f"aep-{next(self._numbers)}"
        self._acks[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ACK_SECONDS if seconds is None else seconds):
                await self._send(kind, payload, name)
                return await self._acks[name]
        except TimeoutError:
            self._say("mute")
            raise Lost from None
        finally:
            self._acks.pop(name, None)

    async def _send(self, kind: str, payload: JSON, id: str | None = None) -> None:
        assert self._socket is not None
        frame: JSON = {"type": kind, "payload": payload}
        if id is not None:
            frame["id"] = id
        await self._socket.send(orjson.dumps(frame).decode())

    def _settle(self, name: str, payload: JSON) -> None:
        waiting = self._acks.get(name)
        if waiting is not None and not waiting.done():
            waiting.set_result(payload)

    def _say(self, state: str) -> None:
        if self.figures.state != state:
            level = logging.INFO if state in ("live", "closing") else logging.WARNING
            log.log(level, "%s: %s", self.address.place, _WORDS.get(state, state))
        self.figures.state = state


_STATES: dict[type[LinkError], str] = {
    Closing: "closing",
    Unauthorized: "unauthorized",
    Strange: "strange",
    Lost: "lost",
}
_WORDS = {
    "live": "watching",
    "mute": "connected, but it says nothing",
    "lost": "the connection is lost",
    "closing": "takes no connections any more; let go of it",
    "unauthorized": "refuses the token of server.token",
    "strange": "is no server of Kimi Code",
}
