"""Sessions as a service keeps them: encoded states, and one reduction after the other."""

from __future__ import annotations

import json
from typing import Any

from handlers.aep.envelope import finish, source_uri
from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import LIMIT
from handlers.lifecycle.reducer import Emitted, Happening, Input, Reduction, reduce
from handlers.lifecycle.state import SessionState

START_MS = 1_796_051_030_000
SESSION = "session_a1ead1f1-ae9b-45f6-9ae8-0653d8a9a02b"


class Shelf:
    """States by session. `serial` is the number of the last input, from which its ids are made."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.serial = 0
        self._dues: dict[str, int] = {}

    def state(self, session: str = SESSION) -> SessionState:
        return SessionState.decode(self.states[session])

    def put(self, state: bytes | None, session: str = SESSION) -> None:
        """Let the stored state be another one, or lost."""
        self._dues.pop(session, None)
        self.states.pop(session, None)
        if state is not None:
            self.states[session] = state

    def take(self, session: str, at: int, *given: Happening) -> Reduction:
        """Reduce what arrives together at Unix ms `at`."""
        inputs = []
        for happening in given:
            self.serial += 1
            inputs.append(Input(happening, at, Mint(at, self.serial.to_bytes(8, "big") + b"\0\0")))
        before = self.state(session) if session in self.states else None
        reduction = reduce(before, inputs, at)
        encoded = reduction.state.encode()
        assert len(encoded) <= LIMIT
        self.states[session] = encoded
        due = reduction.state.due_ms
        if due is None:
            self._dues.pop(session, None)
        elif due <= at:
            raise AssertionError(f"{session} is due at {due}, and it is {at} already")
        else:
            self._dues[session] = due
        return reduction

    def due(self, until: int) -> tuple[int, str] | None:
        """The next session that wants a tick up to Unix ms `until`, and when."""
        return min(((at, session) for session, at in self._dues.items() if at <= until), default=None)


def finished(event: Emitted, session: str = SESSION) -> dict[str, Any]:
    """The event as a consumer gets it."""
    body = finish(
        event.draft,
        id=event.id,
        time_ms=event.time_ms,
        source=source_uri("box", "kimi-code", session),
        agent="kimi-code",
        session=session,
        seq=event.seq,
        run=event.run,
        cause=event.cause,
    )
    made: dict[str, Any] = json.loads(body)
    return made
