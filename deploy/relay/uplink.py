"""One connection to a relay, as an emitter: hello, events out with receipts, commands in."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, NoReturn, TypeAlias
from urllib.parse import urlsplit

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from deploy.relay.transport import Address, Guard, RelayError, Timing, Unconfirmed, Unwelcome
from handlers.aep.canonical import parse
from handlers.aep.envelope import AEP_VERSION
from handlers.aep.frames import is_event
from handlers.aep.levels import Capture, JSONObject
from handlers.counters import Counters
from handlers.errors import InvalidJSON

log = logging.getLogger(__name__)

EMITS = ("session", "run", "tool", "attention", "message", "progress", "delegation", "error", "control")

_LARGEST = 4 * 1024 * 1024
_COMMANDS = 256
# The relay would take these later: by our own words, and by those that others are likely to use.
_TRY_AGAIN = frozenset({"unavailable", "busy", "overloaded", "try-again", "timeout"})


class Identity(NamedTuple):
    """Whose sessions a connection speaks for."""

    emitter: str
    agent: str


OnCommand: TypeAlias = "Callable[[Identity, JSONObject, bytes], Awaitable[JSONObject | None]]"
"""Takes a command with its bytes; returns the frame that refuses it, None where the session answers."""


class Uplink:
    """A connection that is opened once and lost once."""

    def __init__(
        self,
        address: Address,
        token: str | None,
        identity: Identity,
        declaration: JSONObject,
        on_command: OnCommand,
        guard: Guard,
        counters: Counters,
        timing: Timing,
    ) -> None:
        self.heard = 0.0
        self.ended: str | None = None
        self._address = address
        self._token = token
        self._identity = identity
        self._declaration = declaration
        self._on_command = on_command
        self._guard = guard
        self._counters = counters
        self._timing = timing
        self._connection: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._commands: set[asyncio.Task[None]] = set()

    @property
    def opened(self) -> bool:
        """Whether it has been connected and greeted."""
        return self._reader is not None

    async def open(self) -> None:
        """Connect and exchange hellos. Raises `RelayError`, `Unwelcome` where trying again cannot help."""
        try:
            async with asyncio.timeout(self._timing.hello):
                self._connection = await self._connect()
                await self._say(self._hello())
                await self._greet(self._connection)
        except TimeoutError:
            raise RelayError(f"no hello within {self._timing.hello:g} s") from None
        except InvalidStatus as error:
            status = error.response.status_code
            kind = Unwelcome if status in (400, 401, 403, 404, 405, 426) else RelayError
            raise kind(f"the handshake was refused with HTTP {status}") from None
        except (OSError, WebSocketException) as error:
            raise RelayError(_reason(error)) from None
        self.heard = time.monotonic()
        self._reader = asyncio.create_task(self._read(self._connection))

    async def deliver(self, bodies: Sequence[bytes]) -> None:
        """Send events and a ping behind them; its pong says that the relay has read them all."""
        try:
            async with asyncio.timeout(self._timing.confirm):
                for body in bodies:
                    await self._send(body)
                await self._ping()
        except TimeoutError:
            raise Unconfirmed(f"no pong within {self._timing.confirm:g} s") from None

    async def confirm(self) -> None:
        """Raises `RelayError` unless the relay answers a ping in time."""
        await self.deliver(())

    async def watch(self) -> NoReturn:
        """Ping when nothing was heard for a while; ends only by raising."""
        assert self._reader is not None
        while True:
            quiet = time.monotonic() - self.heard
            await asyncio.wait([self._reader], timeout=max(0.05, self._timing.idle - quiet))
            if self._reader.done():
                raise RelayError(self.ended or "the connection ended")
            if time.monotonic() - self.heard >= self._timing.idle:
                await self.confirm()

    async def close(self, reason: str) -> None:
        """Say `closing` and close."""
        if self._connection is None or self.ended is not None:
            return
        with contextlib.suppress(RelayError):
            await self._say({"type": "closing", "reason": reason, "delivered": []})
        with contextlib.suppress(OSError, WebSocketException):
            await self._connection.close()

    def abort(self) -> None:
        """Drop the connection with everything that has not left this process."""
        if self._reader is not None:
            self._reader.cancel()
        for task in self._commands:
            task.cancel()
        if self._connection is not None:
            self._connection.transport.abort()

    async def _connect(self) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else None
        host = urlsplit(self._address.base).hostname
        near = host in ("localhost", "127.0.0.1", "::1")
        return await connect(
            self._address.endpoint,
            additional_headers=headers,
            user_agent_header="aep-kimi",
            compression=None,
            max_size=_LARGEST,
            open_timeout=None,
            close_timeout=self._timing.close,
            proxy=None if near else True,
        )

    def _hello(self) -> JSONObject:
        return {
            "type": "hello",
            "versions": [AEP_VERSION],
            "role": "emitter",
            "identity": {"agent": self._identity.agent, "instance": self._identity.emitter},
            "capabilities": {
                "emits": list(EMITS),
                "capture": [level.value for level in Capture],
                "control": self._declaration,
                "experimental": {},
            },
        }

    async def _greet(self, connection: ClientConnection) -> None:
        while True:
            frame, _ = _decode(await connection.recv())
            kind = frame.get("type")
            if kind == "error":
                raise Unwelcome(f"refused with {_word(frame.get('code'))}: {_word(frame.get('detail'))}")
            if kind == "hello":
                if frame.get("versions") != [AEP_VERSION]:
                    raise Unwelcome(f"it does not choose AEP {AEP_VERSION}")
                return

    async def _send(self, body: bytes) -> None:
        assert self._connection is not None
        self._guard()
        try:
            await self._connection.send(body, text=True)
        except (OSError, WebSocketException) as error:
            raise RelayError(self.ended or _reason(error)) from None

    async def _say(self, frame: JSONObject) -> None:
        await self._send(orjson.dumps(frame))

    async def _ping(self) -> None:
        if self.ended is not None:
            raise RelayError(self.ended)
        number = next(self._numbers)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            await self._say({"type": "ping", "t": number})
            await answered
        finally:
            del self._waiting[number]

    async def _read(self, connection: ClientConnection) -> None:
        try:
            while True:
                await self._take(*_decode(await connection.recv()))
        except RelayError as error:
            self.ended = str(error)
        except (OSError, WebSocketException) as error:
            self.ended = _reason(error)
        except Exception:
            log.exception("reading from the relay failed")
            self.ended = "a defect of ours"
        finally:
            if self.ended is None:
                self.ended = "given up"
            for answered in self._waiting.values():
                if not answered.done():
                    answered.set_exception(RelayError(self.ended))

    async def _take(self, frame: JSONObject, body: bytes) -> None:
        kind = frame.get("type")
        if kind == "pong":
            number = frame.get("t")
            answered = self._waiting.get(number) if isinstance(number, int) else None
            if answered is not None:
                self.heard = time.monotonic()
                if not answered.done():
                    answered.set_result(None)
        elif kind == "ping":
            pong: JSONObject = {"type": "pong"}
            if "t" in frame:
                pong["t"] = frame["t"]
            await self._say(pong)
        elif kind == "closing":
            raise RelayError(f"the relay is closing: {_word(frame.get('reason'))}")
        elif kind == "error":
            self._refused(frame)
        elif is_event(frame):
            self._command(frame, body)

    def _refused(self, frame: JSONObject) -> None:
        code, detail = _word(frame.get("code")), _word(frame.get("detail"))
        if code in _TRY_AGAIN:
            raise RelayError(f"the relay cannot take events now ({code}: {detail})")
        self._counters.add("relay.refused")
        self._counters.add(f"relay.refused.{code[:40]}")
        log.warning("the relay refuses an event for good (%s: %s)", code, detail)

    def _command(self, frame: JSONObject, body: bytes) -> None:
        if len(self._commands) >= _COMMANDS:
            self._counters.add("relay.commands.dropped")
            return
        task = asyncio.create_task(self._handle(frame, body))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _handle(self, frame: JSONObject, body: bytes) -> None:
        try:
            self._guard()
            refusal = await self._on_command(self._identity, frame, body)
            if refusal is not None:
                await self._say(refusal)
        except RelayError as error:
            log.debug("a command from the relay came to nothing: %s", error)
        except Exception:
            log.exception("a command from the relay failed")


def _decode(message: str | bytes) -> tuple[JSONObject, bytes]:
    """A frame and its bytes; what is no frame is an empty one, which nobody heeds."""
    body = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else b""
    try:
        frame = parse(body)
    except InvalidJSON:
        return {}, body
    return (frame if isinstance(frame, dict) else {}), body


def _word(value: object) -> str:
    """Something the relay said, fit for a log line."""
    text = value if isinstance(value, str) else "?"
    return "".join(character if character.isprintable() else "·" for character in text[:200])


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionClosed):
        frame = error.rcvd
        return (
            f"closed by the relay ({frame.code} {_word(frame.reason)})" if frame else "the connection broke"
        )
    return _word(str(error)) or type(error).__name__
