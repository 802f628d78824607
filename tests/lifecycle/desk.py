"""Held calls, those who answer them, and instructions: a session and everything around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONObject
from handlers.lifecycle.commands import Answer, Command, Instruct, Nack
from handlers.lifecycle.gates import Close, Hold, Opened
from handlers.lifecycle.reducer import Emitted, Happening, Reduction
from handlers.lifecycle.state import SessionState
from handlers.mapping.gates import gate_request
from handlers.mapping.hooks import map_hook
from tests.lifecycle.shelf import SESSION, START_MS, Shelf
from tests.lifecycle.support import payload

POSTURE = Posture(capture=Capture.REDACTED)
WINDOW_MS = 5_000


@dataclass
class Gate:
    """What the outside knows of one held hook."""

    ticket: str
    opened: Opened
    call: str
    until: int
    accepted: str | None = None  # the option that was acknowledged
    ended: str | None = None  # how the holder was told that it ended


@dataclass
class Stage:
    """A session and everything around it that a test moves."""

    shelf: Shelf = field(default_factory=Shelf)
    at: int = START_MS
    events: list[Emitted] = field(default_factory=list)
    commands: dict[str, Happening] = field(default_factory=dict)
    acks: list[tuple[str, str]] = field(default_factory=list)

    def feed(self, *given: Happening) -> Reduction:
        reduction = self.shelf.take(SESSION, self.at, *given)
        self.events += reduction.events
        self.acks += reduction.acks
        return reduction

    @property
    def now(self) -> SessionState:
        return self.shelf.state()

    def hook(self, event: str, **fields: Any) -> JSONObject:
        return self.feed(map_hook(payload(event, **fields), POSTURE)).replies[0]

    def hold(self, call: str, tool: str = "Bash", window: int = WINDOW_MS) -> Gate | None:
        fields: dict[str, Any] = {"tool_name": tool, "tool_call_id": call, "tool_input": {"command": "make"}}
        made = payload("PreToolUse", **fields)
        ticket, until = f"p{self.shelf.serial % 2}.{self.shelf.serial}", self.at + window
        request = gate_request(made, POSTURE, until)
        reply = self.feed(Hold(map_hook(made, POSTURE), request, ticket, until)).replies[0]
        if not reply:
            return None
        run = reply["run"]
        opened = Opened(str(reply["gate"]), self.at, run if isinstance(run, str) else None, False)
        return Gate(ticket, opened, call, until)

    def command(self, act: Answer | Instruct | Nack, name: str | None = None) -> tuple[str, JSONObject]:
        identity = f"cmd{self.shelf.serial}"
        made = Command(identity, name or identity, act, by="ann", level=Capture.REDACTED)
        self.commands[identity] = made
        return identity, self.feed(made).replies[0]

    def answer(self, gate: Gate, option: str, *, words: bool = False) -> JSONObject:
        return self.command(Answer(gate.opened.id, option, words))[1]

    def close(self, gate: Gate, why: Any, text: str | None = None) -> Any:
        return self.feed(Close(gate.ticket, why, gate.opened, text)).replies[0]["closed"]

    def of(self, gate: Gate) -> list[str]:
        """The types of everything about a request."""
        return [
            event.draft.type
            for event in self.events
            if event.draft.subject == gate.opened.id or event.id == gate.opened.id
        ]


def one(stage: Stage, call: str = "c1") -> Gate:
    gate = stage.hold(call)
    assert gate is not None
    return gate
