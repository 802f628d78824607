"""A task group after which its task can go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """`asyncio.TaskGroup`, without the request to cancel that one leaves behind when it fails.

    Before Python 3.13, a child that fails while the group only waits asks the surrounding task to be
    cancelled, and nobody takes that back; a time limit in Python 3.11.2 then ends that task instead of
    raising TimeoutError. A cancellation from outside at the same moment is lost, as in the group itself.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup:
        while task.cancelling() > before:
            task.uncancel()
        raise
