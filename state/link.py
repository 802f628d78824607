"""One connection shared by every call of a process: the calls of one event-loop tick go out together.

redis-py makes the connection (address, TLS, login, Sentinel) and reads the replies; this module only
lets many calls be in flight on it. Nothing is ever sent twice: a call either was never written
(`Unreachable`), or it was written and its reply is missing (`Unanswered`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from state.errors import StateError, Unanswered, Unreachable

Argument: TypeAlias = "bytes | str | int"
Dial: TypeAlias = "Callable[[], Awaitable[AbstractConnection]]"

# Seconds that the making of one connection may take in all: addresses, Sentinels, TLS, login.
_DIAL_LIMIT = 5.0


class Link:
    """A connection that comes into being at the first call, and again at the first call after it broke.

    `timeout`, in seconds, bounds every call: connecting, waiting to be sent and waiting for the reply.
    One call that exceeds it condemns the connection, since the calls behind it wait for the same server.
    """

    def __init__(self, dial: Dial, *, timeout: float) -> None:
        self._dial = dial
        self._timeout = timeout
        self._pipe: _Pipe | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a working connection stands right now."""
        return self._pipe is not None and not self._pipe.dead and self._pipe.connection is not None

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """Queue a command and return the future of its reply.

        Commands are written in the order of their `send`. The future raises `Unreachable`, `Unanswered`
        or the server's own `redis.exceptions.ResponseError`.
        """
        return self.post(hiredis.pack_command(command))  # type: ignore[arg-type]

    def post(self, packed: bytes) -> asyncio.Future[Any]:
        """Queue a command that is packed already (RESP); as `send` in everything else."""
        if self._closed:
            raise Unreachable("the connection was closed by this process")
        pipe = self._pipe
        if pipe is None or pipe.dead:
            pipe = self._pipe = _Pipe(self._dial, self._timeout)
        return pipe.send(packed)

    def post_now(self, packed: bytes) -> asyncio.Future[Any] | None:
        """As `post` where a working connection stands, else None."""
        pipe = self._pipe
        if pipe is None or pipe.dead or pipe.connection is None:
            return None
        return pipe.send(packed)

    def drop(self) -> None:
        """Give up the connection: what was sent is unanswered, the next call connects anew."""
        if self._pipe is not None:
            self._pipe.fail("the connection was given up")

    async def close(self) -> None:
        """Close for good, and wait until the socket is closed."""
        self._closed = True
        if self._pipe is not None:
            await self._pipe.close()


class _Call(NamedTuple):
    packed: bytes
    future: asyncio.Future[Any]
    due: float


class _Pipe:
    """One physical connection and the calls on it; once dead it stays dead."""

    def __init__(self, dial: Dial, timeout: float) -> None:
        self.connection: AbstractConnection | None = None
        self.dead = False
        self._dial = dial
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._queued: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer = self._loop.create_task(self._write())

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        due = self._loop.time() + self._timeout
        self._queued.append(_Call(packed, future, due))
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._watch is None:
            self._watch = self._loop.call_at(due, self._check)
        return future

    async def close(self) -> None:
        self.fail("the connection was closed")
        tasks = [task for task in (self._writer, self._reader) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        try:
            async with asyncio.timeout(_DIAL_LIMIT):
                connection = await self._dial()
            self.connection = connection
            self._reader = self._loop.create_task(self._read(connection))
            while True:
                if not self._queued:
                    self._idle = self._loop.create_future()
                    await self._idle
                calls, self._queued = self._queued, []
                if not connection.is_connected:
                    self._queued = calls
                    self.fail("the server closed the connection")
                    return
                self._sent.extend(calls)
                await connection.send_packed_command(
                    b"".join([call.packed for call in calls]), check_health=False
                )
        except (TimeoutError, RedisError, OSError) as error:
            self.fail(_reason(error))
        finally:
            if self.connection is not None:
                await self.connection.disconnect(nowait=True)

    async def _read(self, connection: AbstractConnection) -> None:
        try:
            while True:
                try:
                    reply = await connection.read_response(disable_decoding=True)
                except (AuthenticationError, AuthorizationError) as error:
                    self._answer(ResponseError(str(error)))
                except ResponseError as error:
                    self._answer(error)
                    if isinstance(error, ReadOnlyError):
                        self.fail("the server is no longer the primary")
                        return
                else:
                    self._answer(reply)
        except (TimeoutError, RedisError, OSError) as error:
            self.fail(_reason(error))

    def _answer(self, reply: Any) -> None:
        future = self._sent.popleft().future
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def _check(self) -> None:
        """Condemn the connection when its oldest call is overdue; else look again when that one is due."""
        self._watch = None
        now = self._loop.time()
        why = f"no answer within {self._timeout:g} s"
        if self.connection is None:
            # Connecting may take several addresses; those who cannot wait go, the attempt goes on.
            while self._queued and self._queued[0].due <= now:
                _raise(self._queued.pop(0).future, Unreachable(why))
        oldest = self._sent[0] if self._sent else self._queued[0] if self._queued else None
        if oldest is None:
            return
        if oldest.due <= now:
            self.fail(why)
        else:
            self._watch = self._loop.call_at(oldest.due, self._check)

    def fail(self, why: str) -> None:
        if self.dead:
            return
        self.dead = True
        if self._watch is not None:
            self._watch.cancel()
        for call in self._sent:
            _raise(call.future, Unanswered(why))
        for call in self._queued:
            _raise(call.future, Unreachable(why))
        self._sent.clear()
        self._queued.clear()
        current = asyncio.current_task()
        for task in (self._writer, self._reader):
            if task is not None and task is not current:
                task.cancel()


def _raise(future: asyncio.Future[Any], error: StateError) -> None:
    if not future.done():
        future.set_exception(error)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
