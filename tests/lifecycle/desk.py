"""Held calls, those who answer them, and instructions: a session and everything around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONObject
from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import LIMIT
from handlers.lifecycle.commands import Answer, Command, Instruct, Nack
from handlers.lifecycle.gates import Close, Hold, Opened
from handlers.lifecycle.reducer import Emitted, Happening, Input, Reduction, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.gates import gate_request
from handlers.mapping.hooks import map_hook
from tests.lifecycle.support import START_MS, payload

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

    state: bytes | None = None
    at: int = START_MS
    events: list[Emitted] = field(default_factory=list)
    commands: dict[str, Happening] = field(default_factory=dict)
    acks: list[tuple[str, str]] = field(default_factory=list)
    serial: int = 0

    def feed(self, *given: Happening) -> Reduction:
        inputs = []
        for happening in given:
            self.serial += 1
            inputs.append(Input(happening, self.at, Mint(self.at, self.serial.to_bytes(8, "big") + b"\0\0")))
        before = None if self.state is None else SessionState.decode(self.state)
        reduction = reduce(before, inputs, self.at)
        self.state = reduction.state.encode()
        assert len(self.state) <= LIMIT
        self.events += reduction.events
        self.acks += reduction.acks
        return reduction

    @property
    def now(self) -> SessionState:
        assert self.state is not None
        return SessionState.decode(self.state)

    def hook(self, event: str, **fields: Any) -> JSONObject:
        return self.feed(map_hook(payload(event, **fields), POSTURE)).replies[0]

    def hold(self, call: str, tool: str = "Bash", window: int = WINDOW_MS) -> Gate | None:
        fields: dict[str, Any] = {"tool_name": tool, "tool_call_id": call, "tool_input": {"command": "make"}}
        made = payload("PreToolUse", **fields)
        ticket, until = f"p{self.serial % 2}.{self.serial}", self.at + window
        request = gate_request(made, POSTURE, until)
        reply = self.feed(Hold(map_hook(made, POSTURE), request, ticket, until)).replies[0]
        if not reply:
            return None
        run = reply["run"]
        opened = Opened(str(reply["gate"]), self.at, run if isinstance(run, str) else None, False)
        return Gate(ticket, opened, call, until)

    def command(self, act: Answer | Instruct | Nack, name: str | None = None) -> tuple[str, JSONObject]:
        identity = f"cmd{self.serial}"
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
