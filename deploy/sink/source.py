"""Where a sink's events come from: `/stream` or `/socket` of any AEP endpoint, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from deploy.sink.store import Resume
from handlers.aep.envelope import AEP_VERSION
from handlers.delivery import Item

log = logging.getLogger("aep-kimi sink")

_SILENCE_SECONDS = 60.0
_PING_SECONDS = 15.0
_PAUSES = (0.25, 10.0)
_LARGEST = 64 * 1024 * 1024
_POSITIONS = 1_024
_URL_BYTES = 6_000


class Hopeless(Exception):
    """The endpoint refuses us; trying again will not help."""


class Interrupted(Exception):
    """The connection ended, or could not be made."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask an endpoint for."""

    url: str
    token: str | None
    filter: dict[str, Any]
    capture: str | None
    live: bool = True


class Source:
    """Events of one endpoint. `positions` gives where to go on at one that cannot replay everything."""

    def __init__(self, wanted: Wanted, positions: Callable[[int], list[Resume]]) -> None:
        self.interruptions = 0
        self._wanted = wanted
        self._positions = positions
        parts = urlsplit(wanted.url)
        self._duplex = parts.scheme in ("ws", "wss")
        self._base = wanted.url.rstrip("/").removesuffix("/socket").removesuffix("/stream")

    async def events(self) -> AsyncGenerator[bytes]:
        """Event after event as it came, across interruptions. Raises `Hopeless`.

        Every connection asks for all that is held: only so can nothing be missed of sessions that nobody
        here has heard of. Without `live` there is one connection, and `Interrupted` is raised on.
        """
        pause = _PAUSES[0]
        while True:
            try:
                connection = self._socket() if self._duplex else self._stream()
                async with contextlib.aclosing(connection) as bodies:
                    async for body in bodies:
                        pause = _PAUSES[0]
                        yield body
                if not self._wanted.live:
                    return
                reason = "the endpoint ended the stream"
            except Interrupted as error:
                if not self._wanted.live:
                    raise
                reason = str(error)
            self.interruptions += 1
            log.warning("interrupted: %s", reason)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _PAUSES[1])

    async def _stream(self) -> AsyncGenerator[bytes]:
        headers = {"User-Agent": "aep-kimi"}
        if self._wanted.token:
            headers["Authorization"] = f"Bearer {self._wanted.token}"
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=_SILENCE_SECONDS) as client:
                parameters = {"filter": json.dumps(self._wanted.filter)}
                whole = await self._replays_all(client)
                start = "all" if whole else self._as_parameter()
                if start is not None:
                    parameters["from"] = start
                if self._wanted.capture:
                    parameters["capture"] = self._wanted.capture
                if not self._wanted.live:
                    parameters["live"] = "0"
                accept = {"Accept": "text/event-stream"}
                async with client.stream(
                    "GET", f"{self._base}/stream", params=parameters, headers=accept
                ) as response:
                    if response.status_code != 200:
                        text = (await response.aread())[:300].decode("utf-8", "replace")
                        raise _refusal(response.status_code, text)
                    data: list[bytes] = []
                    async for line in lines(response.aiter_bytes()):
                        if line.startswith(b"data:"):
                            data.append(line[5:].removeprefix(b" "))
                        elif line == b"" and data:
                            yield b"\n".join(data)
                            data = []
                        elif line.startswith(b": replay-exhausted"):
                            log.warning("%s", _plain(line[2:].decode("utf-8", "replace")))
        except httpx2.HTTPError as error:
            raise Interrupted(f"no events from {self._base}: {error or type(error).__name__}") from None

    async def _replays_all(self, client: httpx2.AsyncClient) -> bool:
        """Whether the endpoint says that `from=all` is not known to it; silence counts as yes."""
        response = await client.get(f"{self._base}/events")
        try:
            document = response.json()
        except ValueError:
            return True
        capabilities = document.get("capabilities") if isinstance(document, dict) else None
        return _all(capabilities)

    def _as_parameter(self) -> str | None:
        chosen: list[dict[str, Any]] = []
        for resume in self._positions(_POSITIONS):
            chosen.append({"session": resume.session, "epoch": resume.epoch, "seq": resume.seq})
            if len(json.dumps(chosen)) > _URL_BYTES:
                break
        return json.dumps(chosen) if chosen else None

    async def _socket(self) -> AsyncGenerator[bytes]:
        token = self._wanted.token
        headers = {"Authorization": f"Bearer {token}"} if token else None
        host = urlsplit(self._base).hostname
        near = host in ("localhost", "127.0.0.1", "::1")
        try:
            async with connect(
                f"{self._base}/socket",
                additional_headers=headers,
                user_agent_header="aep-kimi",
                compression=None,
                max_size=_LARGEST,
                close_timeout=1,
                proxy=None if near else True,
            ) as connection:
                await connection.send(json.dumps(_HELLO))
                pinger: asyncio.Task[None] | None = None
                try:
                    while True:
                        async with asyncio.timeout(_SILENCE_SECONDS):
                            message = await connection.recv()
                        body = message.encode("utf-8", "replace") if isinstance(message, str) else message
                        try:
                            frame = Item.parse("foreign", body).event
                        except ValueError:
                            continue
                        kind = frame.get("type")
                        if isinstance(kind, str) and "." in kind:
                            yield body
                        elif kind == "hello" and pinger is None:
                            await connection.send(json.dumps(self._subscribe(frame)))
                            pinger = asyncio.create_task(_keep_asking(connection.send))
                        elif kind == "error":
                            text = f"{_plain(frame.get('code'))}: {_plain(frame.get('detail'))}"
                            again = frame.get("code") == "limit-exceeded"
                            raise (Interrupted if again else Hopeless)(f"the endpoint refused: {text}")
                        elif kind == "replay-exhausted":
                            log.warning("replay-exhausted %s", _plain(frame.get("session")))
                        elif kind == "closing":
                            log.info("the endpoint is closing: %s", _plain(frame.get("reason")))
                finally:
                    if pinger is not None:
                        pinger.cancel()
                        await asyncio.gather(pinger, return_exceptions=True)
        except InvalidStatus as error:
            raise _refusal(error.response.status_code, "") from None
        except TimeoutError:
            raise Interrupted(f"{self._base} has been silent for {_SILENCE_SECONDS:.0f} s") from None
        except (OSError, WebSocketException) as error:
            raise Interrupted(f"no events from {self._base}: {error or type(error).__name__}") from None

    def _subscribe(self, hello: dict[str, Any]) -> dict[str, Any]:
        frame: dict[str, Any] = {"type": "subscribe", "id": "sink", "filter": self._wanted.filter}
        if self._wanted.capture:
            frame["capture"] = self._wanted.capture
        if _all(hello.get("capabilities")):
            frame["from"] = "all"
        else:
            frame["from"] = [
                {"session": resume.session, "epoch": resume.epoch, "seq": resume.seq}
                for resume in self._positions(_POSITIONS)
            ]
        return frame


async def lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The lines of an event stream without their ends: CR LF, LF or CR, and no other (HTML standard, §9.2.6).

    Text functions end lines at U+2028 or U+0085 too, which JSON strings may hold as they are.
    """
    rest: list[bytes] = []
    cut = False
    async for chunk in chunks:
        if not chunk:
            continue
        for line in (chunk.removeprefix(b"\n") if cut else chunk).splitlines(keepends=True):
            rest.append(line)
            if line.endswith((b"\n", b"\r")):
                yield b"".join(rest).rstrip(b"\r\n")
                rest = []
        cut = chunk.endswith(b"\r")


_HELLO = {
    "type": "hello",
    "versions": [AEP_VERSION],
    "role": "consumer",
    "identity": {"agent": "aep-kimi", "instance": "sink"},
    "capabilities": {"filters": ["attr-match"], "experimental": {}},
}


async def _keep_asking(send: Callable[[str], Any]) -> None:
    while True:
        await asyncio.sleep(_PING_SECONDS)
        await send('{"type":"ping"}')


def _all(capabilities: object) -> bool:
    replay = capabilities.get("replay") if isinstance(capabilities, dict) else None
    return replay.get("all") is True if isinstance(replay, dict) else True


def _refusal(status: int, text: str) -> Exception:
    said = f"HTTP {status} {_plain(text)}".strip()
    if status >= 500 or status in (408, 425, 429):
        return Interrupted(f"the endpoint answers {said}")
    return Hopeless(f"the endpoint refused: {said}")


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else "?"
    return "".join(character if character.isprintable() else "·" for character in text[:200])
