"""Fixtures that give a test a Redis of the kind `AEP_TEST_REDIS` names (see `tests.servers`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from state.connection import Client, Limits, connect
from state.keys import Keys
from tests.servers import AnyServer, Server, from_environment


@pytest.fixture(scope="session")
def redis_server() -> Iterator[AnyServer]:
    """The server of this test process; use `redis_url`, which empties it first."""
    server = from_environment()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: AnyServer) -> str:
    """URL of an empty server."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def keys(redis_server: AnyServer) -> Keys:
    """Keys with the number of shards that suits the server."""
    return Keys("aep", redis_server.shards)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    """A client with time limits that a busy machine does not reach."""
    client = connect(redis_url, Limits(write=10, read=10, connect=10))
    yield client
    await client.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server with an append-only log that the test may freeze and kill."""
    server = Server(aof=True)
    yield server
    server.stop()
