"""Whether the client of a request is still there, for answers that take time or may be given only once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Receive

_ROUNDS = 4
"""Turns of the event loop from the end of a connection to the task that watches it."""


class Client:
    """Watches for the end of a connection while its request is worked on. The body must have been read."""

    __slots__ = ("_task",)

    def __init__(self, receive: Receive) -> None:
        self._task = asyncio.create_task(_until_gone(receive))

    @property
    def gone(self) -> bool:
        """Whether the client has let go of the connection."""
        return self._task.done()

    def on_gone(self, act: Callable[[], None]) -> None:
        """Call `act` when the client goes."""
        self._task.add_done_callback(lambda _: act())

    async def settle(self) -> None:
        """Give what has arrived on the connection a chance to be noticed."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
