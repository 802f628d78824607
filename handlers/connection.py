"""One duplex connection: the hello, what comes in, and what goes out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Send
from starlette.websockets import WebSocketDisconnect

from handlers.aep.canonical import parse
from handlers.aep.envelope import AEP_VERSION
from handlers.aep.frames import Hello, closing, frame_id, is_event, parse_hello, refusal
from handlers.aep.levels import JSONObject, JSONValue
from handlers.discovery import capabilities
from handlers.errors import FrameRefused, InvalidEvent, InvalidJSON
from handlers.framing import dump, framed
from handlers.service import Service
from handlers.subscribing import SharedOutbox, Subscriptions
from handlers.tokens import Principal, Right
from state.errors import StateError

log = logging.getLogger(__name__)

_HELLO_SECONDS = 10.0
_PING_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_FRAME_BYTES = 1 << 20

GOING_AWAY, POLICY, TRY_LATER, NORMAL = 1001, 1008, 1013, 1000


class Connection:
    """A connection that was accepted. Its frames are handled in the order in which they came."""

    def __init__(
        self,
        service: Service,
        principal: Principal,
        receive: Receive,
        send: Send,
        *,
        framing: bool = False,
    ) -> None:
        """With `framing` the server takes frames ready made; see `handlers.framing`."""
        self.service = service
        self.principal = principal
        self.framing = framing
        self.box = SharedOutbox()
        self.hello: Hello | None = None
        self._receive = receive
        self._send = send
        self._name = service.claims.connection(self)
        self._subscriptions = Subscriptions(self)
        self._reason: tuple[int, str] | None = None
        self._gone = False

    def drain(self) -> None:
        """The process is stopping."""
        self.end(GOING_AWAY, "shutting-down")

    def expel(self) -> None:
        """Its token is no longer what it was."""
        self.end(POLICY, "unauthorized")

    def lag(self) -> None:
        """The feed lost something: the consumer must come back and resume."""
        self.end(TRY_LATER, "events were missed; resume from the delivered positions")

    def command(self, body: bytes) -> None:
        """A command for a session that is claimed here, byte for byte."""
        self._force(body)

    def say(self, frame: JSONObject) -> None:
        """Send a frame; frames are never dropped."""
        self._force(dump(frame))

    def end(self, code: int, reason: str) -> None:
        """Close, once what waits has been sent."""
        if self._reason is None:
            self._reason = (code, reason)
        self.box.close()

    async def run(self) -> None:
        """Serve until either side has had enough."""
        self.service.counters.add("sockets.opened")
        self.service.hub.join(self)
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        self.box.on_overrun = lambda: self._overrun(writer)
        try:
            await writer
        except asyncio.CancelledError:
            if not self.box.overrun:
                raise
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await self._subscriptions.close()
            self.box.close()
            self.service.hub.leave(self)
            self.service.counters.add("sockets.dropped", self.box.dropped)
            await self._close()
            await self.service.claims.release(self._name)

    def _overrun(self, writer: asyncio.Task[None]) -> None:
        self.service.counters.add("sockets.overrun")
        self._reason = (TRY_LATER, "too slow; resume from the delivered positions")
        writer.cancel()

    async def _close(self) -> None:
        if self._gone:
            return
        code, reason = self._reason or (NORMAL, "")
        # A peer that does not read cannot be told; it must not hold us either.
        with contextlib.suppress(TimeoutError, RuntimeError, OSError, WebSocketDisconnect):
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self.hello is not None and reason:
                    last = dump(closing(reason, self._subscriptions.delivered()))
                    await self._out([framed(last) if self.framing else last])
                await self._send({"type": "websocket.close", "code": code, "reason": reason[:120]})

    async def _write(self) -> None:
        while True:
            if not await self.box.ready(_PING_SECONDS):
                if self.hello is not None:
                    self.say({"type": "ping", "t": self.service.clock.now_ms()})
                continue
            while len(self.box):
                entries = self.box.entries()
                await self._out([entry[1] for entry in entries])
                marks = [entry[2] for entry in entries if entry[2] is not None]
                self.service.counters.add("events.out.socket", len(marks))
                self._subscriptions.note(marks)
            if self.box.closed and not len(self.box):
                return

    def _force(self, frame: bytes) -> None:
        self.box.force(framed(frame) if self.framing else frame)

    async def _out(self, payloads: list[bytes]) -> None:
        """Write what was taken out of the box, in order."""
        if self._gone:
            return
        try:
            if self.framing:
                await self._send({"type": "websocket.send", "frames": b"".join(payloads)})
                return
            for payload in payloads:
                await self._send({"type": "websocket.send", "text": payload.decode("utf-8", "replace")})
        except (OSError, WebSocketDisconnect):
            self._gone = True
            self.box.close()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                if not await self._greet():
                    return
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    self._left()
                    return
                try:
                    await self._take(message)
                except FrameRefused as error:
                    self.say(refusal(error))
        except TimeoutError:
            self.say(refusal(FrameRefused("hello-required", f"no hello within {_HELLO_SECONDS:.0f} s")))
            self.end(POLICY, "")
        except Exception:
            log.exception("a connection failed")
            self.end(1011, "internal error")

    def _left(self) -> None:
        self._gone = True
        self.box.close()

    async def _greet(self) -> bool:
        """Wait for the hello and answer it; False when there was none that can be answered."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._left()
            return False
        try:
            hello = parse_hello(self._decode(message)[0])
            if hello.emitting and not self.principal.may(Right.EMIT):
                raise FrameRefused("unauthorized", "this token does not allow 'emit'")
            if hello.consuming and not self.principal.may(Right.WATCH):
                raise FrameRefused("unauthorized", "this token does not allow 'watch'")
        except FrameRefused as error:
            if error.code not in ("version-unsupported", "unauthorized"):
                error = FrameRefused("hello-required", error.detail)
            self.say(refusal(error))
            self.end(POLICY, "")
            return False
        self.hello = hello
        self.say(
            {
                "type": "hello",
                "versions": [AEP_VERSION],
                "role": "both",
                "identity": {"agent": "aep-kimi", "instance": self.service.settings.emitter},
                "capabilities": capabilities(self.service),
            }
        )
        return True

    def _decode(self, message: Mapping[str, Any]) -> tuple[JSONObject, bytes]:
        text = message.get("text")
        if text is None:
            raise FrameRefused("binary-unsupported", "frames are text (AEP-0003 §3.5.2)")
        body = text.encode("utf-8", "surrogatepass")
        if len(body) > self.service.settings.max_body:
            raise FrameRefused(
                "limit-exceeded", f"larger than AEP_MAX_BODY ({self.service.settings.max_body} bytes)"
            )
        try:
            frame = parse(body)
        except InvalidJSON as error:
            raise FrameRefused("bad-json", str(error)) from None
        if not isinstance(frame, dict):
            raise FrameRefused("bad-json", "a frame is a JSON object")
        return frame, body

    async def _take(self, message: Mapping[str, Any]) -> None:
        frame, body = self._decode(message)
        if is_event(frame):
            await self._event(frame, body)
            return
        if len(body) > _FRAME_BYTES:
            raise FrameRefused("limit-exceeded", f"a frame has at most {_FRAME_BYTES} bytes", id=_id(frame))
        kind = frame.get("type")
        if kind == "subscribe":
            self._watching(frame)
            await self._subscriptions.open(frame)
        elif kind == "unsubscribe":
            identity = frame_id(frame)
            self._subscriptions.drop(identity)
            self.say({"type": "unsubscribed", "id": identity})
        elif kind == "roster":
            await self._roster(frame)
        elif kind == "ping":
            pong: JSONObject = {"type": "pong"}
            if "t" in frame:
                pong["t"] = frame["t"]
            self.say(pong)
        elif kind == "closing":
            self.end(NORMAL, "")

    def _watching(self, frame: JSONObject) -> None:
        assert self.hello is not None
        if not self.hello.consuming:
            raise FrameRefused("unauthorized", "this connection said it is an emitter", id=_id(frame))

    async def _roster(self, frame: JSONObject) -> None:
        identity = frame_id(frame)
        self._watching(frame)
        try:
            entries = await self.service.router.roster(self.principal)
        except StateError:
            raise FrameRefused("limit-exceeded", "Redis does not answer; ask again", id=identity) from None
        self.say({"type": "roster", "id": identity, "entries": entries})

    async def _event(self, frame: JSONObject, body: bytes) -> None:
        cause = _id(frame)
        assert self.hello is not None
        try:
            posted = self.service.ingest.check(frame, body)
        except InvalidEvent as error:
            raise FrameRefused(error.code, str(error), cause=cause) from None
        if posted.is_command:
            await self.service.router.route(self.principal, posted)
            return
        if not self.hello.emitting:
            raise FrameRefused("unauthorized", "this connection said it is a consumer", cause=cause)
        await self._slow_down()
        if posted.session is not None and posted.position is not None:
            await self.service.claims.claim(self._name, self.principal.emitter, posted.session, self.hello)
        try:
            await self.service.ingest.admit(self.principal, [posted])
        except StateError:
            raise FrameRefused("unavailable", "Redis does not answer; send it again", cause=cause) from None

    async def _slow_down(self) -> None:
        """A token over its rate is read from more slowly, which its sender notices by itself."""
        rates, clock = self.service.rates, self.service.clock
        await asyncio.sleep(rates.wait(self.principal, clock.steady()))
        rates.take(self.principal, clock.steady())


def _id(frame: JSONObject) -> str | None:
    value: JSONValue = frame.get("id")
    return value if isinstance(value, str) else None
