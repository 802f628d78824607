"""Fixtures of the tests of the `kimi web` channel."""

from __future__ import annotations

from tests.app.conftest import replica

__all__ = ["replica"]
