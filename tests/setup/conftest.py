"""A home of the vendor with a config file of real life."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.setup.shapes import REAL


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "config.toml").write_bytes(REAL)
    return folder
