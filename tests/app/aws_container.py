"""A container of Lambda: a thread of its own with its loop, which stands still between two invocations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from handlers.app import LazyApp
from tests.app.aws_events import Ask, Builder, Event, answered, body_of, function_url, replay_of

if TYPE_CHECKING:
    from handlers.aws import Function


class Limit:
    """The context object of an invocation, as far as it is asked."""

    def __init__(self, limit_ms: int) -> None:
        self._end = time.monotonic() + limit_ms / 1000

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._end - time.monotonic()) * 1000))


class Container:
    """Calls the real handler as Lambda does. `jump` is by how many seconds the wall clock is moved."""

    def __init__(self) -> None:
        self.jump = 0.0
        self._thread = ThreadPoolExecutor(1)
        self.loop = self._do(asyncio.new_event_loop)
        self._do(asyncio.set_event_loop, self.loop)
        self.function: Function = self._do(self._made)

    def send(self, event: Event, limit_ms: int = 30_000) -> Future[dict[str, Any]]:
        """Begin an invocation."""
        return self._thread.submit(self.function, event, Limit(limit_ms))

    def call(self, event: Event, limit_ms: int = 30_000) -> dict[str, Any]:
        """One whole invocation."""
        return self.send(event, limit_ms).result(60)

    def hook(self, event: str, session: str = "s1", *, via: Builder = function_url, **fields: Any) -> str:
        """Hand in a hook; what `AEP-Stored` says."""
        return answered(self.call(via(hook_ask(event, session, **fields))))["aep-stored"]

    def events(self, session: str = "s1", *, via: Builder = function_url) -> list[dict[str, Any]]:
        """What is held of a session."""
        answer = self.call(via(replay_of(session)))
        assert answer["statusCode"] == 200, answer
        return [json.loads(line[6:]) for line in body_of(answer).split("\n") if line.startswith("data: ")]

    def close(self) -> None:
        """End its connections and its thread."""
        if self.function.app._app is not None:
            self._do(self.loop.run_until_complete, self.function.app.service.stop())
        self._do(self.loop.close)
        self._thread.shutdown()

    def _made(self) -> Function:
        # The import makes a loop for its thread, which must not be the tests' own.
        from handlers.aws import Function

        return Function(LazyApp(serverless=True), lambda: time.time() + self.jump)

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._thread.submit(work, *arguments).result(60)


def hook_ask(
    event: str, session: str = "s1", *, ago_ms: int = 0, encoded: bool = False, **fields: Any
) -> Ask:
    """A hook as the shim posts it."""
    payload = {"hook_event_name": event, "session_id": session, **fields}
    return Ask("POST", "/hook", json.dumps(payload, ensure_ascii=False), ago_ms=ago_ms, encoded=encoded)
