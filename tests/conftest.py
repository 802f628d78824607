"""Fixtures, settings and checks for the whole suite."""

from hypothesis import HealthCheck, settings

from tests.fixtures_data import oracle_dir, spec_dir
from tests.fixtures_redis import admin, alone, client, keys, own_server, redis_server, redis_url
from tests.leaks import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_runtest_teardown,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = [
    "admin",
    "alone",
    "client",
    "keys",
    "oracle_dir",
    "own_server",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "redis_server",
    "redis_url",
    "spec_dir",
]

# a busy machine is no failure: no example has a deadline, and examples may be slow to draw
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
