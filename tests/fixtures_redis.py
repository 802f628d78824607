"""Fixtures that give a test a Redis in the shape that `AEP_TEST_REDIS` names (see `tests.servers`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from state.connection import Client, Limits, connect
from state.keys import Keys
from tests import leaks
from tests.servers import AnyServer, OwnServer, Restricted, Server, shape
from tests.shapes import from_environment, own

PATIENT = Limits(write=10, read=10, connect=10)
"""Time limits that a busy machine does not reach."""

Alone: TypeAlias = Callable[..., Server]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[AnyServer]:
    """The server of this test process; use `redis_url`, which empties it first."""
    server = from_environment()
    leaks.shared.append(server)
    yield server
    leaks.shared.remove(server)
    leaks.audit.look(server, "the last test")
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
    """A client with the rights of the service."""
    client = connect(redis_url, PATIENT)
    yield client
    await client.close()


@pytest.fixture
async def admin(redis_server: AnyServer) -> AsyncIterator[Client]:
    """A client for what a test does to the server, whatever the service may do there."""
    client = connect(redis_server.admin_url, PATIENT)
    yield client
    await client.close()


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A server with an append-only log that the test may freeze and kill."""
    server = own()
    yield server
    server.thaw()
    if server.alive:
        leaks.audit.look(server, request.node.nodeid)
    server.stop()


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[Alone]:
    """Starts single servers with the shape's program and rights, for what no cluster can do."""
    started: list[Server] = []

    def start(**options: Any) -> Server:
        server = (Restricted if shape()[0] == "acl" else Server)(**options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.thaw()
        if server.alive and b"master" in server.run("ROLE"):
            leaks.audit.look(server, request.node.nodeid)
        server.stop()
