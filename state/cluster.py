"""Redis Cluster: one link per node, the slot map, and its redirections.

A redirected call was not executed, so sending it to the right node is not a second write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ResponseError,
    TryAgainError,
)

from state.connection import Client, Lane, Limits, opened
from state.errors import Refused, StateError, Unreachable
from state.keys import SLOTS, slot
from state.link import Argument, Link

Node = tuple[str, int]

_REDIRECTS = 5


class Cluster(Client):
    """A cluster, entered by any of `seeds`."""

    def __init__(self, seeds: Sequence[Node], options: dict[str, Any], limits: Limits, *, tls: bool) -> None:
        super().__init__(limits)
        self._seeds = list(seeds)
        self._options = options
        self._connection: type[Connection] = SSLConnection if tls else Connection
        self._owners: list[Node | None] = [None] * SLOTS
        self._links: dict[tuple[Node, Lane], Link] = {}
        self._mapped = False
        self._closed = False
        self._mapping: asyncio.Lock = asyncio.Lock()

    async def call(self, key: str, *command: Argument, lane: Lane = "write") -> Any:
        (reply,) = await self._follow(key, [command], lane)
        return reply

    def start(self, key: str, packed: bytes) -> asyncio.Future[Any] | None:
        node = self._owners[slot(key)] if self._mapped and not self.limits.wait_replicas else None
        link = self._links.get((node, "write")) if node is not None else None
        return None if link is None else link.post_now(packed)

    async def pair(self, key: str, first: Sequence[Argument], second: Sequence[Argument]) -> tuple[Any, Any]:
        replies = await self._follow(key, [first, second], "write")
        return replies[0], replies[1]

    async def blocking(self, key: str, seconds: float) -> Link:
        # Asking for the key's type brings the map up to date for it.
        await self.call(key, "TYPE", key, lane="read")
        node = self._owners[slot(key)] or self._seeds[0]
        return Link(lambda: self._dial(node), timeout=seconds)

    async def everywhere(self, *command: Argument) -> list[Any]:
        await self._map()
        nodes = sorted({node for node in self._owners if node is not None})
        try:
            return [await self._link(node, "read").send(*command) for node in nodes]
        except ResponseError as error:
            raise Refused(str(error)) from error

    @property
    def connected(self) -> bool:
        primaries = {node for node in self._owners if node is not None}
        return bool(primaries) and all(
            link.connected
            for (node, lane), link in self._links.items()
            if lane == "write" and node in primaries
        )

    async def close(self) -> None:
        self._closed = True
        for link in list(self._links.values()):
            await link.close()

    async def _follow(self, key: str, commands: Sequence[Sequence[Argument]], lane: Lane) -> list[Any]:
        """Send commands back to back to the owner of `key`, wherever the nodes say it is."""
        if not self._mapped:
            await self._map()
        number = slot(key)
        ask: Node | None = None
        for attempt in range(_REDIRECTS):
            node = ask or self._owners[number]
            if node is None:
                self._mapped = False
                raise Refused(f"no node of the cluster serves slot {number}")
            link = self._link(node, lane)
            futures = [link.send("ASKING"), link.send(*commands[0])] if ask else [link.send(*commands[0])]
            futures += [link.send(*command) for command in commands[1:]]
            ask = None
            replies = await asyncio.gather(*futures, return_exceptions=True)
            replies = replies[-len(commands) :]
            try:
                return list(_replies(replies))
            except AskError as error:
                ask = (error.host or node[0], int(error.port))
            except MovedError as error:
                self._owners[number] = (error.host or node[0], int(error.port))
                self._mapped = False
            except (ClusterDownError, TryAgainError) as error:
                self._mapped = False
                if attempt == _REDIRECTS - 1:
                    raise Refused(str(error)) from error
                await asyncio.sleep(0.02 * (attempt + 1))
            except NoScriptError:
                raise
            except ResponseError as error:
                raise Refused(str(error)) from error
            except StateError:
                self._mapped = False  # the owner may have been replaced: look before the next call
                raise
        raise Refused("the cluster redirected the call in a circle")

    async def _map(self) -> None:
        """Ask any node who owns which slots."""
        async with self._mapping:
            if self._mapped:
                return
            known = [node for node in dict.fromkeys(self._owners) if node is not None]
            trouble: Exception = Unreachable("no node of the cluster answered")
            for node in dict.fromkeys([*known, *self._seeds]):
                try:
                    ranges = await self._link(node, "read").send("CLUSTER", "SLOTS")
                except (StateError, ResponseError) as error:
                    trouble = error
                    continue
                owners: list[Node | None] = [None] * SLOTS
                for first, last, primary, *_ in ranges:
                    # An empty host means "the one you asked".
                    owner = (primary[0].decode() if primary[0] else node[0], int(primary[1]))
                    owners[first : last + 1] = [owner] * (last + 1 - first)
                self._owners = owners
                self._mapped = True
                return
            raise Unreachable(f"no node of the cluster answered: {trouble}") from trouble

    def _link(self, node: Node, lane: Lane) -> Link:
        if self._closed:
            raise Unreachable("the connection was closed by this process")
        link = self._links.get((node, lane))
        if link is None:
            timeout = self.limits.write if lane == "write" else self.limits.read
            link = self._links[node, lane] = Link(lambda: self._dial(node), timeout=timeout)
        return link

    async def _dial(self, node: Node) -> AbstractConnection:
        return await opened(self._connection(host=node[0], port=node[1], **self._options))


def _replies(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies
