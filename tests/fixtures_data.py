"""Fixtures that find the data which is not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _directory(variable: str, what: str) -> Path:
    given = os.environ.get(variable)
    if not given:
        pytest.skip(f"set {variable} to the directory of {what}")
    return Path(given)


@pytest.fixture(scope="session")
def spec_dir() -> Path:
    """The AEP schemas and conformance fixtures (`AEP_SPEC_DIR`)."""
    return _directory("AEP_SPEC_DIR", "AEP's schemas and conformance fixtures")


@pytest.fixture(scope="session")
def oracle_dir() -> Path:
    """What shipped binaries sent, and the labelled truth (`AEP_ORACLE_DIR`)."""
    return _directory("AEP_ORACLE_DIR", "the vendor captures")
