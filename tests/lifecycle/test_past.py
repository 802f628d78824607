"""Calls of long ago, known again by a few characters."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from handlers.lifecycle.past import added, holds

_RUNS = [None, *(f"run_{number}" for number in range(4))]


@given(st.lists(st.tuples(st.sampled_from(_RUNS), st.integers(0, 40)), max_size=60), st.integers(1, 60))
def test_the_newest_are_known_by_run_and_by_themselves(
    calls: list[tuple[str | None, int]], limit: int
) -> None:
    past = ""
    for run, number in calls:
        past = added(past, run, f"call_{number}", limit)
    kept = calls[-limit:]
    assert len(past) == 8 * len(kept)
    for run, number in kept:
        assert holds(past, None, f"call_{number}")
        if run is not None:
            assert holds(past, run, f"call_{number}")
    assert not holds(past, None, "call_41")


def test_another_run_does_not_know_the_call() -> None:
    past = added("", "run_a", "call", 512)
    assert holds(past, "run_a", "call")
    assert not holds(past, "run_b", "call")
    assert not holds("", "run_a", "call")


def test_no_call_is_known_from_pieces_of_two() -> None:
    source = random.Random(7)
    calls = [f"call_{source.randrange(10**12)}" for _ in range(20_000)]
    past = ""
    for call in calls[:512]:
        past = added(past, "run", call, 512)
    assert not [call for call in calls[512:] if holds(past, None, call)]
