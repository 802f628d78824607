"""A time limit for a block of a task, for the paths where `asyncio.timeout` is a visible part of the cost."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal


class Limit:
    """`with Limit(seconds): …` raises TimeoutError where the block is not through in time.

    It behaves as `asyncio.timeout` does: the task is cancelled inside the block, a cancellation from outside
    stays one, and limits nest.
    """

    __slots__ = ("_before", "_fired", "_handle", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a limit needs a task"
        self._task: asyncio.Task[object] = task
        self._before = task.cancelling()
        self._fired = False
        self._handle = task.get_loop().call_later(max(0.0, self._seconds), self._fire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._handle.cancel()
        if self._fired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error
        return False

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()
