"""Fixtures of the vendor suites: the installed binaries, a model server, an isolated Kimi Code per test.

`kimi` runs a test once per version (0.28.0, the newest 2.x); `kimi_newest` and `kimi_oldest` are one of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.model_server import ModelServer

from . import install
from .install import Install, Unavailable
from .kimi import Kimi
from .recorder import Recorder
from .service import Service

OLDEST = "0.28.0"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vendor)


def _get(version: str | None) -> Install:
    try:
        return install.kimi(version or install.newest(2))
    except Unavailable as error:
        if os.environ.get("AEP_VENDOR_REQUIRED") == "1":
            pytest.fail(f"Kimi Code cannot be installed: {error}")
        pytest.skip(f"Kimi Code cannot be installed: {error}")


@pytest.fixture(scope="session", autouse=True)
def _told_to_stop() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl+C does, so that no server stays behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to stop", 3))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def kimi_0_28() -> Install:
    return _get(OLDEST)


@pytest.fixture(scope="session")
def kimi_2() -> Install:
    return _get(None)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(params=["0.28.0", "2.x"])
def kimi(request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer) -> Kimi:
    """An isolated Kimi Code, once per version."""
    name = "kimi_0_28" if request.param == OLDEST else "kimi_2"
    return Kimi(cast(Install, request.getfixturevalue(name)), tmp_path, model.url)


@pytest.fixture
def kimi_newest(kimi_2: Install, tmp_path: Path, model: ModelServer) -> Kimi:
    return Kimi(kimi_2, tmp_path, model.url)


@pytest.fixture
def kimi_oldest(kimi_0_28: Install, tmp_path: Path, model: ModelServer) -> Kimi:
    return Kimi(kimi_0_28, tmp_path, model.url)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A stub of the service: keeps every hook payload, answers `{}` (or what the test says)."""
    with Recorder() as server:
        yield server


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One real service with a real Redis for all tests that only watch; sessions keep apart by their ids."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running
