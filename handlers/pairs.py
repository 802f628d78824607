"""Two calls at the same time, for the paths where `asyncio.gather` is a visible part of the cost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from state.errors import StateError

_One = TypeVar("_One")
_Two = TypeVar("_Two")


async def beside(
    first: Coroutine[Any, Any, _One], second: Coroutine[Any, Any, _Two]
) -> tuple[_One | StateError, _Two]:
    """The results of both; `first` is begun first, in a task, and `second` in the caller's own.

    A `StateError` of `first` is its result. What else either raises ends both.
    """
    task = asyncio.ensure_future(first)
    try:
        await asyncio.sleep(0)
    except BaseException:
        second.close()
        task.cancel()
        raise
    try:
        done = await second
    except BaseException:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    try:
        return await task, done
    except StateError as error:
        return error, done
