"""Held gates: what a request that waits for a human costs, and how soon it wakes."""

from __future__ import annotations

from tests.bench.figures import Figure, Missing
from tests.bench.lab import Lab

TITLE = "Held gates"


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    raise Missing("gates are not there yet")
