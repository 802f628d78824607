"""The posting way to a relay (AEP-0003 §3.2), where a socket cannot be held. It takes no commands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import NoReturn

import httpx2

from deploy.relay.transport import Address, Guard, Parcel, RelayError, Timing, Unconfirmed, Unwelcome
from handlers.aep.envelope import AEP_VERSION
from handlers.counters import Counters

log = logging.getLogger(__name__)
# It would tell every request, with whatever is secret in the address.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_TAKEN = frozenset({200, 202, 204})
# One event of the batch is meant; 403 only where the answer says which.
_REFUSED = frozenset({400, 413, 422})


class Posts:
    """Posts batches one after another; a receipt is the status 202."""

    def __init__(
        self, address: Address, token: str | None, guard: Guard, counters: Counters, timing: Timing
    ) -> None:
        self.heard = 0.0
        self._looked = 0.0
        self._endpoint = address.endpoint
        self._guard = guard
        self._counters = counters
        self._timing = timing
        self._turn = asyncio.Lock()
        headers = {"User-Agent": "aep-kimi", "AEP-Version": AEP_VERSION}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.AsyncClient(headers=headers, timeout=timing.confirm)

    async def open(self) -> None:
        await self._look()

    async def deliver(self, parcels: Sequence[Parcel]) -> None:
        async with self._turn:
            await self._post([parcel.body for parcel in parcels])

    async def watch(self) -> NoReturn:
        while True:
            quiet = time.monotonic() - self._looked
            await asyncio.sleep(max(0.05, self._timing.idle - quiet))
            if time.monotonic() - self._looked >= self._timing.idle:
                await self._look()

    async def close(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            await self._client.aclose()

    def abort(self) -> None:
        """A request that is under way ends with the task that made it."""

    async def _look(self) -> None:
        """Whether it is there, by its discovery document."""
        self._guard()
        try:
            response = await self._client.get(self._endpoint)
        except httpx2.HTTPError as error:
            raise RelayError(_reason(error)) from None
        if response.status_code >= 500:
            raise RelayError(f"it answers {response.status_code}")
        self._looked = time.monotonic()
        if self.heard:
            # Whether it takes our token is seen when it takes an event.
            self.heard = self._looked

    async def _post(self, bodies: list[bytes]) -> None:
        """Post until every event is taken or refused for good."""
        while bodies:
            self._guard()
            try:
                response = await self._client.post(
                    self._endpoint,
                    content=b"\n".join(bodies) + b"\n",
                    headers={"Content-Type": "application/x-ndjson"},
                )
            except httpx2.TimeoutException:
                raise Unconfirmed(f"no answer within {self._timing.confirm:g} s") from None
            except httpx2.HTTPError as error:
                raise RelayError(_reason(error)) from None
            self._looked = time.monotonic()
            status = response.status_code
            if status in _TAKEN:
                self.heard = self._looked
                return
            line = _line(response, len(bodies))
            if status not in _REFUSED and (status != 403 or line is None):
                raise _kind(status)(f"it answers {status} {_detail(response)}")
            if line is None and len(bodies) > 1:
                # Somewhere in there is one that it will not have.
                half = len(bodies) // 2
                await self._post(bodies[:half])
                await self._post(bodies[half:])
                return
            self._counters.add("relay.refused")
            self._counters.add(f"relay.refused.{status}")
            log.warning("the relay refuses an event for good (%d %s)", status, _detail(response))
            bodies = _without(bodies, line or 0)


def _kind(status: int) -> type[RelayError]:
    if status in (408, 429):
        # Fewer at a time may do.
        return Unconfirmed
    return Unwelcome if 300 <= status < 500 and status != 425 else RelayError


def _without(bodies: list[bytes], line: int) -> list[bytes]:
    return bodies[:line] + bodies[line + 1 :]


def _line(response: httpx2.Response, count: int) -> int | None:
    """Which line was refused; the relay takes a batch whole or not at all."""
    try:
        line = response.json().get("line")
    except (ValueError, AttributeError):
        return None
    return line if isinstance(line, int) and 0 <= line < count else None


def _detail(response: httpx2.Response) -> str:
    text = response.text[:200]
    return "".join(character if character.isprintable() else "·" for character in text)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
