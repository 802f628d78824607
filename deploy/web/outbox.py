"""Hands frames to the service, in order, one batch at a time, again until they are taken.

What waits is bounded. While the service takes frames, whoever brings them waits for room; while it is away
they are turned away, and asked for again later: the server of the vendor keeps them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import orjson

from deploy.web.errors import ServiceAway

log = logging.getLogger(__name__)

JSON = dict[str, Any]

PATH = "/frames/web"
WAIT_MS = 25_000
HELD_BYTES = 16 * 1024 * 1024
BATCH_LINES = 512
BATCH_BYTES = 1024 * 1024
_STUB_TEXT = 256
_LINGER_SECONDS = 0.02
_TIMEOUT_SECONDS = 30.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_POLL_PAUSE = 1.0
_AT_ONCE = 200


class Outbox:
    """One link's connection to the service."""

    def __init__(self, url: str, token: str | None, mode: str | None, name: str) -> None:
        headers = {"User-Agent": "aep-kimi-web"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False, headers=headers)
        self._url = url.rstrip("/") + PATH
        self._query = {"link": name} | ({} if mode is None else {"mode": mode})
        self._lines: deque[bytes] = deque()
        self._own: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._flying = 0
        self.delivered = 0
        self.turned_away = 0
        self.skipped = 0
        self.problem: str | None = None

    @property
    def waiting(self) -> int:
        """Frames that the service has not taken yet."""
        return len(self._lines) + self._flying

    def put(self, line: bytes) -> bool:
        """A frame, or a line that must keep its place among frames; False where there is no room for it."""
        if self._lines and self._size + len(line) > HELD_BYTES:
            self.turned_away += 1
            return False
        self._lines.append(line)
        self._size += len(line)
        self._changed.set()
        return True

    @property
    def roomy(self) -> bool:
        """Whether more frames should be asked for."""
        return self._size <= HELD_BYTES // 2

    async def room(self) -> None:
        """Wait until there is room, or the service is found to be away."""
        while not self.roomy and self.problem is None:
            self._taken.clear()
            await self._taken.wait()

    def tell(self, line: JSON) -> None:
        """A line of the link's own, which is never let go."""
        self._own.append(orjson.dumps(line))
        self._changed.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_LINGER_SECONDS)
            self._changed.clear()
            while self._lines or self._own:
                await self._deliver()

    async def finish(self, seconds: float) -> None:
        """Deliver what is left, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._lines or self._own:
                    await self._deliver()
        except TimeoutError:
            pass
        await self._client.aclose()

    async def cursors(self, sessions: Sequence[str]) -> dict[str, JSON]:
        """Where the service stands with these sessions. Raises `ServiceAway`."""
        found: dict[str, JSON] = {}
        for start in range(0, len(sessions), _AT_ONCE):
            line: JSON = {"link": "sessions", "ids": list(sessions[start : start + _AT_ONCE])}
            answer = await self._post(orjson.dumps(line) + b"\n")
            told = answer.get("cursors")
            found |= {k: v for k, v in told.items() if isinstance(v, dict)} if isinstance(told, dict) else {}
        return found

    async def poll(self, do: Callable[[JSON], None], live: Callable[[], list[str]]) -> None:
        """Keep a request open for what the service wants done, until cancelled.

        `live` are the sessions at our servers; those that the service thinks elsewhere are claimed.
        """
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                names = live()[:_AT_ONCE]
                line = orjson.dumps({"link": "sessions", "ids": names}) + b"\n"
                answer = await self._post(line, {"wait_ms": str(WAIT_MS)}, WAIT_MS / 1000 + 10)
            except ServiceAway:
                await asyncio.sleep(_LONGEST_PAUSE)
                continue
            self._claim(names, answer.get("cursors"))
            writes = answer.get("writes")
            for write in writes if isinstance(writes, list) else []:
                if isinstance(write, dict):
                    do(write)
            if not writes and loop.time() - began < _POLL_PAUSE:
                await asyncio.sleep(_POLL_PAUSE)

    def _claim(self, names: list[str], told: object) -> None:
        stands = told if isinstance(told, dict) else {}
        lost = [name for name in names if name in stands and not stands[name].get("linked")]
        if lost:
            self.tell({"link": "claim", "ids": lost})

    async def _deliver(self) -> None:
        """Send one batch until it is taken, or let go."""
        lines, own = self._take()
        pause = _FIRST_PAUSE
        while True:
            body = b"\n".join([*own, *lines, b""])
            try:
                answer = await self._post(body)
            except _TooLarge:
                lines = self._smaller(lines)
                continue
            except ServiceAway:
                own = [*own, *self._own]
                self._own.clear()
                self._taken.set()
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            finally:
                self._flying = len(lines)
            break
        self.delivered += len(lines)
        self._flying = 0
        self._taken.set()
        skipped = answer.get("skipped")
        self.skipped += skipped if isinstance(skipped, int) else 0

    def _take(self) -> tuple[list[bytes], list[bytes]]:
        own = list(self._own)
        self._own.clear()
        lines: list[bytes] = []
        size = 0
        while self._lines and len(lines) < BATCH_LINES:
            if lines and size + len(self._lines[0]) > BATCH_BYTES:
                break
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        self._size -= size
        self._flying = len(lines)
        return lines, own

    def _smaller(self, lines: list[bytes]) -> list[bytes]:
        """The first half of a batch that was too large; of a single line what tells it from others."""
        if len(lines) > 1:
            for line in reversed(lines[len(lines) // 2 :]):
                self._lines.appendleft(line)
                self._size += len(line)
            return lines[: len(lines) // 2]
        return [stub(line) for line in lines]

    async def _post(
        self, body: bytes, more: dict[str, str] | None = None, seconds: float = _TIMEOUT_SECONDS
    ) -> JSON:
        query = {**self._query, **(more or {})}
        headers = {"Content-Type": "application/x-ndjson"}
        try:
            answer = await self._client.post(
                self._url, params=query, content=body, headers=headers, timeout=seconds
            )
        except (httpx2.HTTPError, OSError) as error:
            raise self._away(f"the service does not answer ({type(error).__name__})") from None
        if answer.status_code == 413:
            raise _TooLarge
        if answer.status_code != 200:
            raise self._away(f"the service answers {answer.status_code}")
        if self.problem is not None:
            log.warning("the service answers again")
        self.problem = None
        try:
            value = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            raise self._away("the service answers no JSON") from None
        return value if isinstance(value, dict) else {}

    def _away(self, problem: str) -> ServiceAway:
        if self.problem != problem:
            log.warning("%s; frames wait", problem)
        self.problem = problem
        return ServiceAway(problem)


class _TooLarge(Exception):
    """The service takes no request of this size."""


def stub(line: bytes) -> bytes:
    """A frame that is too large for the service, with its ids and without its content."""
    try:
        frame = orjson.loads(line)
    except orjson.JSONDecodeError:
        return b"{}"
    if not isinstance(frame, dict):
        return b"{}"
    payload = frame.get("payload")
    small = _short(payload) if isinstance(payload, dict) else {}
    return orjson.dumps({**_short(frame), "payload": small})


def _short(table: JSON) -> JSON:
    return {
        key: value
        for key, value in table.items()
        if len(key) <= _STUB_TEXT
        and (
            value is None
            or isinstance(value, int | float)
            or (isinstance(value, str) and len(value) <= _STUB_TEXT)
        )
    }
