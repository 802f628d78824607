"""A group of tasks that failed leaves a task that time limits still work in."""

from __future__ import annotations

import asyncio

import pytest

from deploy.relay.groups import task_group


async def fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("a fault")


async def test_nothing_is_left_of_a_group_that_failed() -> None:
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.RaisesGroup(ValueError):
            async with task_group() as group:
                group.create_task(fail())
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()


async def test_one_that_is_cancelled_from_outside_says_so() -> None:
    async def wait() -> None:
        async with task_group() as group:
            group.create_task(asyncio.Event().wait())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
