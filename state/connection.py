"""Connections to Redis in every shape: standalone, unix socket, TLS, Sentinel and Cluster.

    redis://[user:password@]host[:6379][/db]            rediss:// for TLS
    unix://[user:password@]/path/to.sock[?db=0]
    redis+sentinel://[user:password@]host[:26379][,host…]/service[/db]   rediss+sentinel://
    redis+cluster://[user:password@]host[:6379][,host…]                  rediss+cluster://

`valkey` may stand for `redis` in all of them. Query parameters are redis-py's connection arguments
(`?ssl_ca_certs=/ca.pem`); for Sentinel also `sentinel_username` and `sentinel_password`.

Nothing here retries a write by itself, and every call has a time limit of its own.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from state.errors import NotReplicated, Refused
from state.link import Argument, Link
from state.lua import Script

Lane: TypeAlias = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, and how many replicas a durable write waits for (0: none).

    `write` bounds commits and everything a hook waits for, `read` replay pages and scans, `connect` the
    making of a connection. `wait_replicas` with `wait` is Redis's WAIT after each durable write.
    """

    write: float = 0.25
    read: float = 2.0
    connect: float = 0.25
    wait_replicas: int = 0
    wait: float = 0.1


class Client(ABC):
    """What the rest of this package needs of Redis: calls, scripts, and a connection that may block."""

    imitation = False
    """Whether this is no server at all, but one that is played inside this process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    @abstractmethod
    async def call(self, key: str, *command: Argument, lane: Lane = "write") -> Any:
        """Run one command on the server that holds `key`; replies are RESP2 values, strings as bytes.

        Raises Unreachable, Unanswered, or Refused with the server's words.
        """

    def start(self, key: str, packed: bytes) -> asyncio.Future[Any] | None:
        """Send a packed write on a connection that stands, now; None where there is more to it than that.

        The future ends within `limits.write` and raises what the server says (`ResponseError`, a redirection
        included), Unreachable or Unanswered.
        """
        return None

    @abstractmethod
    async def pair(self, key: str, first: Sequence[Argument], second: Sequence[Argument]) -> tuple[Any, Any]:
        """Two commands back to back on one write connection (for WAIT)."""

    @abstractmethod
    async def blocking(self, key: str, seconds: float) -> Link:
        """A connection of one's own to the server that holds `key`, for calls that may take `seconds`."""

    @abstractmethod
    async def everywhere(self, *command: Argument) -> list[Any]:
        """Run one command on every primary."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the write connection stands right now."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections that are not somebody's own."""

    async def script(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        lane: Lane = "write",
        durable: bool = False,
    ) -> Any:
        """Run a script by its digest; a server that does not know it (restart, SCRIPT FLUSH) gets its text.

        With `durable` and `wait_replicas`, raises NotReplicated when too few replicas confirmed in time.
        """
        tail = (len(keys), *keys, *arguments)
        durable = durable and self.limits.wait_replicas > 0
        try:
            if durable:
                return await self._replicated(keys[0], ("EVALSHA", script.sha, *tail))
            return await self.call(keys[0], "EVALSHA", script.sha, *tail, lane=lane)
        except NoScriptError:
            if durable:
                return await self._replicated(keys[0], ("EVAL", script.source, *tail))
            return await self.call(keys[0], "EVAL", script.source, *tail, lane=lane)

    async def _replicated(self, key: str, command: Sequence[Argument]) -> Any:
        wait = ("WAIT", self.limits.wait_replicas, max(1, int(self.limits.wait * 1000)))
        reply, replicas = await self.pair(key, command, wait)
        if replicas < self.limits.wait_replicas:
            raise NotReplicated(
                f"{replicas} of {self.limits.wait_replicas} replicas confirmed the write", reply
            )
        return reply


class Standalone(Client):
    """One server: by address, by unix socket, or the primary that Sentinel names."""

    def __init__(
        self,
        pool: ConnectionPool,
        limits: Limits,
        watchers: Sequence[Redis] = (),
    ) -> None:
        super().__init__(limits)
        self._pool = pool
        self._watchers = watchers
        self._lanes: dict[str, Link] = {
            "write": Link(self._dial, timeout=limits.write),
            "read": Link(self._dial, timeout=limits.read),
        }

    async def call(self, key: str, *command: Argument, lane: Lane = "write") -> Any:
        try:
            return await self._lanes[lane].send(*command)
        except NoScriptError:
            raise
        except ResponseError as error:
            raise Refused(str(error)) from error

    def start(self, key: str, packed: bytes) -> asyncio.Future[Any] | None:
        return None if self.limits.wait_replicas else self._lanes["write"].post_now(packed)

    async def pair(self, key: str, first: Sequence[Argument], second: Sequence[Argument]) -> tuple[Any, Any]:
        link = self._lanes["write"]
        return await both(link.send(*first), link.send(*second))

    async def blocking(self, key: str, seconds: float) -> Link:
        return Link(self._dial, timeout=seconds)

    async def everywhere(self, *command: Argument) -> list[Any]:
        return [await self.call("", *command, lane="read")]

    @property
    def connected(self) -> bool:
        return self._lanes["write"].connected

    async def close(self) -> None:
        for link in self._lanes.values():
            await link.close()
        for watcher in self._watchers:
            await watcher.aclose()

    async def _dial(self) -> AbstractConnection:
        return await opened(self._pool.make_connection())  # type: ignore[no-untyped-call]


async def opened(connection: AbstractConnection) -> AbstractConnection:
    """Connect, and leave nothing open when that fails or is given up."""
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def both(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> tuple[Any, Any]:
    """The replies of two calls; the second is never left unawaited when the first fails."""
    replies = await asyncio.gather(first, second, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError):
            raise Refused(str(reply)) from reply
        if isinstance(reply, BaseException):
            raise reply
    return replies[0], replies[1]


_URL = re.compile(r"^(redis|rediss|valkey|valkeys)(?:\+(sentinel|cluster))?://")


def connect(url: str, limits: Limits | None = None, *, name: str = "aep-kimi") -> Client:
    """A client for `url`. Connections are made at the first call, so a server that is away is no error here.

    `name` shows in CLIENT LIST. Raises ValueError for a URL that is none of the forms above.
    """
    limits = limits or Limits()
    common: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": False,
        # Without a time limit of its own: the link watches over the calls it multiplexes.
        "socket_timeout": None,
        "socket_connect_timeout": limits.connect,
        "retry": Retry(NoBackoff(), 0),
        "client_name": name,
    }
    if url.startswith("fake://"):
        from state.fake import Fake

        return Fake(url, limits)
    if url.startswith("unix://"):
        return Standalone(ConnectionPool.from_url(url, **common), limits)
    match = _URL.match(url)
    if match is None:
        raise ValueError(
            "a Redis URL begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        )
    scheme, shape = match.groups()
    tls = scheme in ("rediss", "valkeys")
    if shape is None:
        plain = f"{'rediss' if tls else 'redis'}://{url[match.end() :]}"
        return Standalone(ConnectionPool.from_url(plain, **common), limits)
    # Not for urlsplit: newer Pythons refuse a list of hosts with an IPv6 address in it.
    rest, _, asked = url[match.end() :].partition("#")[0].partition("?")
    netloc, _, path = rest.partition("/")
    query = dict(parse_qsl(asked))
    user, _, addresses = netloc.rpartition("@")
    username, _, password = user.partition(":")
    login = {"username": unquote(username) or None, "password": unquote(password) or None}
    if shape == "cluster":
        from state.cluster import Cluster

        return Cluster(_addresses(addresses, 6379), common | login | query, limits, tls=tls)
    return _sentinel(_addresses(addresses, 26379), path, common | login, query, limits, tls=tls)


def _sentinel(
    addresses: list[tuple[str, int]],
    path: str,
    common: dict[str, Any],
    query: dict[str, str],
    limits: Limits,
    *,
    tls: bool,
) -> Standalone:
    service, _, db = path.strip("/").partition("/")
    if not service:
        raise ValueError("a Sentinel URL names its service: redis+sentinel://host:26379/mymaster")
    watchers: dict[str, Any] = {
        "username": query.pop("sentinel_username", None),
        "password": query.pop("sentinel_password", None),
        "socket_timeout": limits.connect,
        "socket_connect_timeout": limits.connect,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    if tls and query.pop("sentinel_ssl", "true") != "false":
        watchers |= {"ssl": True} | {k: v for k, v in query.items() if k.startswith("ssl_")}
    sentinel = Sentinel(addresses, sentinel_kwargs=watchers)  # type: ignore[no-untyped-call]
    options = {"db": int(db or 0), "ssl": tls, **common, **query}
    pool = SentinelConnectionPool(service, sentinel, **options)  # type: ignore[no-untyped-call]
    return Standalone(pool, limits, watchers=sentinel.sentinels)


def _addresses(text: str, port: int) -> list[tuple[str, int]]:
    found = []
    for item in text.split(","):
        match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?", item.strip())
        if match is None:
            raise ValueError(f"not a host[:port]: {item!r}")
        found.append((match["six"] or match["host"], int(match["port"] or port)))
    return found
