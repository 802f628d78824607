"""Fixtures and settings for the whole suite."""

from hypothesis import HealthCheck, settings

from tests.fixtures_data import oracle_dir, spec_dir
from tests.fixtures_redis import client, keys, own_server, redis_server, redis_url

__all__ = ["client", "keys", "oracle_dir", "own_server", "redis_server", "redis_url", "spec_dir"]

# a busy machine is no failure: no example has a deadline, and examples may be slow to draw
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
