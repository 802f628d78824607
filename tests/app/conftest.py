"""Fixtures of the tests that run the whole service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.app.replica import Replica, running
from tests.servers import AnyServer


@pytest.fixture
async def replica(redis_server: AnyServer) -> AsyncIterator[Replica]:
    """A replica without a token, on a prefix of its own."""
    async with running(redis_server) as found:
        yield found
