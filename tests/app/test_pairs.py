"""Two calls at the same time."""

from __future__ import annotations

import asyncio

import pytest

from handlers.pairs import beside
from state.errors import Unanswered


async def test_both_run_at_once_and_the_first_begins() -> None:
    order: list[str] = []
    met = asyncio.Event()

    async def first() -> int:
        order.append("first")
        await met.wait()
        return 1

    async def second() -> int:
        order.append("second")
        met.set()
        return 2

    assert await beside(first(), second()) == (1, 2)
    assert order == ["first", "second"]


async def test_what_the_first_could_not_reach_is_its_result() -> None:
    async def first() -> int:
        raise Unanswered("gone")

    async def second() -> int:
        return 2

    result, done = await beside(first(), second())
    assert isinstance(result, Unanswered)
    assert done == 2


async def test_the_first_ends_with_what_the_second_raises() -> None:
    ended = asyncio.Event()

    async def first() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def second() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await beside(first(), second())
    assert ended.is_set()
