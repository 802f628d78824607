"""The key-leak check: what a test leaves in Redis has a prefix of ours, and a lifetime or a stated reason.

It looks after every test that had a server, and fails the run at its end, however often a test was tried.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.servers import AnyServer, shape

INSIDE = re.compile(rb"(aep|t\d+):")
"""The prefixes that tests use; `tests.servers.PATTERNS` are the same for an access list."""

ETERNAL = {
    re.compile(INSIDE.pattern + rb"layout"): "one short string for each prefix, which outlives all data",
    re.compile(rb"aep:hand:.*"): "written by a test and not by the service",
}
"""What may live for ever, and why."""

FIXTURES = frozenset({"redis_server", "own_server", "alone"})
"""Whoever uses none of these does not touch a Redis of the run's shape."""


def eternal(name: bytes) -> bool:
    """Whether a key may live for ever."""
    return any(pattern.fullmatch(name) for pattern in ETERNAL)


def leaks(held: dict[bytes, int]) -> list[str]:
    """What is wrong with keys and their milliseconds left, a line for each."""
    found = []
    for name, left in held.items():
        if not INSIDE.match(name):
            found.append(f"outside the prefix: {name!r}")
        elif left < 0 and not eternal(name):
            found.append(f"without a lifetime: {name!r}")
    return found


@dataclass
class Audit:
    """What was looked at in this process, and what was found."""

    tests: int = 0
    keys: int = 0
    found: list[str] = field(default_factory=list)

    def look(self, server: AnyServer, test: str) -> None:
        """Look at everything that a test left, and empty the server for the next one."""
        held = server.held()
        if not held:
            return
        self.tests += 1
        self.keys += len(held)
        self.found += [f"{test} left a key {leak}" for leak in leaks(held)]
        server.flush()

    def add(self, said: dict[str, Any]) -> None:
        """Take in what another process found."""
        self.tests += said["tests"]
        self.keys += said["keys"]
        self.found += said["found"]


audit = Audit()
shared: list[AnyServer] = []
"""The server that the tests of this process share, once one of them asked for it."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        # Only now is everything gone that the test had running.
        if shared and "redis_server" in getattr(item, "fixturenames", ()):
            audit.look(shared[0], item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    said = getattr(session.config, "workeroutput", None)
    if said is not None:
        said["leaks"] = {"tests": audit.tests, "keys": audit.keys, "found": audit.found}
    elif audit.found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    said = getattr(node, "workeroutput", {}).get("leaks")
    if said is not None:
        audit.add(said)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if audit.tests:
        kind, name = shape()
        where = f"Redis {kind}" if "://" in kind else f"Redis {kind} ({name})"
        told = f"{where}: {audit.keys} keys left by {audit.tests} tests, {len(audit.found)} leaked"
        terminalreporter.write_line(told)
    for line in audit.found:
        terminalreporter.write_line(f"LEAK {line}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--touching-redis",
        action="store_true",
        help="run only what uses a Redis of the shape that AEP_TEST_REDIS names",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--touching-redis"):
        return
    touching = [item for item in items if FIXTURES & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(touching)])
    items[:] = touching
