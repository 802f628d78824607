"""Fixtures for the whole suite."""

from tests.fixtures_data import *  # noqa: F403
from tests.fixtures_redis import client, keys, own_server, redis_server, redis_url

__all__ = ["client", "keys", "own_server", "redis_server", "redis_url"]
