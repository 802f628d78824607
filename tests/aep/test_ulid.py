"""ULIDs: their alphabet, their order, and the same ids from the same seed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.ulid import Mint, ulid

SEED = st.binary(min_size=10, max_size=10)
MS = st.integers(0, (1 << 48) - 1)


def test_known_ulid() -> None:
    # the time part of the specification's own example
    assert ulid(1469918176385, bytes(10)) == "01ARYZ6S410000000000000000"
    assert ulid((1 << 48) - 1, b"\xff" * 10) == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


@given(MS, SEED)
def test_shape(ms: int, seed: bytes) -> None:
    assert re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", ulid(ms, seed))


@given(MS, MS, SEED, SEED)
def test_sorts_by_time(first: int, second: int, one: bytes, other: bytes) -> None:
    if first < second:
        assert ulid(first, one) < ulid(second, other)


@given(MS, SEED)
def test_a_mint_rises_and_repeats_itself(ms: int, seed: bytes) -> None:
    mint, again = Mint(ms, seed), Mint(ms, seed)
    ids = [mint.next() for _ in range(20)]
    assert ids == [again.next() for _ in range(20)]
    assert ids == sorted(set(ids))
    assert ids[0] == ulid(ms, seed)


def test_a_mint_goes_on_when_its_random_part_is_used_up() -> None:
    mint = Mint(5, b"\xff" * 10)
    assert [mint.next(), mint.next()] == [ulid(5, b"\xff" * 10), ulid(6, bytes(10))]


@pytest.mark.parametrize("ms", [-1, -(10**20), 1 << 48, 10**30])
def test_a_time_out_of_range_is_clamped(ms: int) -> None:
    assert ulid(ms, bytes(10)) in (ulid(0, bytes(10)), ulid((1 << 48) - 1, bytes(10)))


@pytest.mark.parametrize("size", [0, 9, 11])
def test_needs_ten_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="10 random bytes"):
        ulid(0, bytes(size))
