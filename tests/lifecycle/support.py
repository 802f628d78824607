"""A session to tell stories with: hooks in, events out, the clock in the test's hand."""

from __future__ import annotations

from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.lifecycle.reducer import Emitted, Tick
from handlers.lifecycle.state import SessionState
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from tests.lifecycle.shelf import SESSION, START_MS, Shelf

ENGINES: dict[str, dict[str, Any]] = {"v1": {}, "v2": {}, "new": {"client_type": "kimi_code_cli"}}


def payload(event: str, *, engine: str = "new", session: str = SESSION, **fields: Any) -> dict[str, Any]:
    """A hook payload as that engine writes it."""
    made = {"hook_event_name": event, "session_id": session, "cwd": "/home/user/project", **ENGINES[engine]}
    if event == "UserPromptSubmit":
        made["prompt"] = [{"type": "text", "text": "hello"}]
        if engine != "v1":
            made["is_steer"] = False
    return {**made, **fields}


class Story:
    """One session as a service keeps it. `at` is the time of the last input, Unix milliseconds."""

    def __init__(self, engine: str = "new", *, capture: Capture = Capture.METADATA) -> None:
        self.engine = engine
        self.posture = Posture(capture=capture)
        self.events: list[Emitted] = []
        self.at = START_MS
        self.shelf = Shelf()

    @property
    def state(self) -> SessionState | None:
        return self.shelf.state() if SESSION in self.shelf.states else None

    def hook(self, event: str, *, after: int = 10, **fields: Any) -> list[Emitted]:
        """A hook arrives `after` milliseconds; the events it tells."""
        self.at += after
        return self.feed(map_hook(payload(event, engine=self.engine, **fields), self.posture))

    def wait(self, ms: int) -> list[Emitted]:
        """Time passes; ticks come when they are due. The events they tell."""
        until, told = self.at + ms, []
        while due := self.shelf.due(until):
            self.at = max(self.at, due[0])
            told += self.feed(Tick())
        self.at = until
        return told

    def feed(self, moment: Moment | Tick) -> list[Emitted]:
        reduction = self.shelf.take(SESSION, self.at, moment)
        self.events += reduction.events
        return list(reduction.events)

    # The vendor's usual moments, with its usual fields.

    def prompt(self, turn: int | None = None, **more: Any) -> list[Emitted]:
        told = self.hook("UserPromptSubmit", **more)
        if turn is not None:
            told += self.turn(turn)
        return told

    def turn(self, turn: int, origin: str = "user", **more: Any) -> list[Emitted]:
        return self.hook("TurnStarted", turn_id=turn, origin_kind=origin, **more)

    def pre(self, call: str, tool: str = "Bash", *, background: bool = False, **more: Any) -> list[Emitted]:
        given = {"run_in_background": True} if background else {}
        return self.hook("PreToolUse", tool_name=tool, tool_call_id=call, tool_input=given, **more)

    def post(self, call: str, tool: str = "Bash", **more: Any) -> list[Emitted]:
        return self.hook("PostToolUse", tool_name=tool, tool_call_id=call, tool_output="ok", **more)

    def fail(self, call: str, tool: str = "Bash", **more: Any) -> list[Emitted]:
        error = {"code": "internal", "message": "no"}
        return self.hook("PostToolUseFailure", tool_name=tool, tool_call_id=call, error=error, **more)

    def ask(self, call: str, **more: Any) -> list[Emitted]:
        return self.hook("PermissionRequest", tool_name="Bash", tool_call_id=call, action="run", **more)

    def answer(self, call: str, decision: str, **more: Any) -> list[Emitted]:
        fields = {"tool_name": "Bash", "tool_call_id": call, "decision": decision}
        return self.hook("PermissionResult", **{**fields, **more})


def types(events: list[Emitted]) -> list[str]:
    """The types, shortened for the vendor's own."""
    return [event.draft.type.replace("x.kimi-code.session.", "x.") for event in events]


def only(events: list[Emitted], event_type: str) -> Emitted:
    """The one event of that type."""
    found = [event for event in events if event.draft.type == event_type]
    assert len(found) == 1, types(events)
    return found[0]
