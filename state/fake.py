"""The last resort where no server program can run: fakeredis, in this process, keeping nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from state.connection import Client, Lane, Limits
from state.errors import Refused, Unanswered
from state.link import Argument, Link

_servers: dict[str, Any] = {}


class Fake(Client):
    """A client of the in-process imitation. Clients of one URL share its data."""

    imitation = True

    def __init__(self, url: str, limits: Limits) -> None:
        super().__init__(limits)
        import fakeredis

        server = _servers.setdefault(url, fakeredis.FakeServer())
        self._redis: Any = fakeredis.FakeAsyncRedis(server=server, protocol=2)
        self._redis.response_callbacks.clear()
        self._begun: set[asyncio.Task[Any]] = set()

    async def call(self, key: str, *command: Argument, lane: Lane = "write") -> Any:
        task = asyncio.ensure_future(self._redis.execute_command(*command))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        try:
            # What is begun goes on, as on a server. A cancellation that came with the reply would get lost.
            return await asyncio.shield(task)
        except NoScriptError:
            raise
        except ResponseError as error:
            raise Refused(str(error)) from error
        except RedisError as error:
            raise Unanswered(str(error)) from error

    async def pair(self, key: str, first: Sequence[Argument], second: Sequence[Argument]) -> tuple[Any, Any]:
        return await self.call(key, *first), 0

    async def blocking(self, key: str, seconds: float) -> Link:
        return _Blocking(self._redis, seconds)

    async def everywhere(self, *command: Argument) -> list[Any]:
        return [await self.call("", *command)]

    @property
    def connected(self) -> bool:
        return True

    async def close(self) -> None:
        await asyncio.gather(*self._begun, return_exceptions=True)
        await self._redis.aclose()


class _Blocking(Link):
    """Blocking reads as short waits: a cancelled blocking call would slow the imitation for good.

    So they are not cancelled, but end with the next wait after this was closed.
    """

    def __init__(self, redis: Any, seconds: float) -> None:
        self._redis = redis
        self._seconds = seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(self._poll(list(command)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self, command: list[Argument]) -> Any:
        if "BLOCK" in command:
            at = command.index("BLOCK")
            del command[at : at + 2]
        until = asyncio.get_running_loop().time() + self._seconds - 2
        while True:
            reply = await self._redis.execute_command(*command)
            if reply or self._closed or asyncio.get_running_loop().time() >= until:
                return reply
            await asyncio.sleep(0.02)
