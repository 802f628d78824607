"""Fixtures of the tests of the ACP channel."""

from __future__ import annotations

from tests.app.conftest import replica

__all__ = ["replica"]
