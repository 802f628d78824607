"""Frames and hooks through mapping and reducer alone, with the capture's clock and its ticks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.envelope import finish, source_uri
from handlers.aep.levels import JSONObject
from handlers.aep.ulid import Mint
from handlers.lifecycle.reducer import Emitted, Happening, Input, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.web import Resync
from handlers.mapping.hooks import map_hook
from handlers.mapping.web import Mode, map_frame

START_MS = 1_796_051_030_000
SESSION = "session_web_1"
EPOCH = "ep_1"


@dataclass(slots=True)
class Stage:
    """One service's sessions: encoded states, moved by frames, hooks and ticks."""

    mode: Mode = "primary"
    posture: Posture = field(default_factory=Posture)
    states: dict[str, bytes] = field(default_factory=dict)
    dues: dict[str, int] = field(default_factory=dict)
    told: list[tuple[str, Emitted]] = field(default_factory=list)
    at: int = START_MS
    serial: int = 0

    def frame(self, frame: JSONObject, at: int | None = None) -> list[Emitted]:
        """A frame arrives; the events it tells."""
        moment = map_frame(frame, self.mode, self.posture)
        return [] if moment is None else self.feed(moment.session, moment, at)

    def hook(self, payload: JSONObject, at: int | None = None) -> list[Emitted]:
        """A hook arrives; the events it tells."""
        moment = map_hook(payload, self.posture)
        return self.feed(moment.session, moment, at)

    def resync(self, **fields: Any) -> list[Emitted]:
        """A snapshot arrives; the events it tells."""
        given = {"stream": f"web.{EPOCH}", "number": 100, "primary": self.mode == "primary", **fields}
        return self.feed(SESSION, Resync(**given))

    def state(self, session: str = SESSION) -> SessionState:
        return SessionState.decode(self.states[session])

    def wait(self, until: int) -> None:
        """Let time pass up to Unix ms `until`."""
        while ready := [(due, session) for session, due in self.dues.items() if due <= until]:
            due, session = min(ready)
            self.feed(session, Tick(), due)
        self.at = max(self.at, until)

    def feed(self, session: str, happening: Happening, at: int | None = None) -> list[Emitted]:
        self.at = self.at + 10 if at is None else at
        self.serial += 1
        mint = Mint(self.at, self.serial.to_bytes(8, "big") + b"\0\0")
        stored = self.states.get(session)
        before = None if stored is None else SessionState.decode(stored)
        reduction = reduce(before, [Input(happening, self.at, mint)], self.at)
        self.states[session] = reduction.state.encode()
        self.told += [(session, event) for event in reduction.events]
        if reduction.state.due_ms is None:
            self.dues.pop(session, None)
        else:
            self.dues[session] = reduction.state.due_ms
        return list(reduction.events)

    def events(self) -> list[dict[str, Any]]:
        """Everything told, as a consumer gets it."""
        return [event_of(session, emitted) for session, emitted in self.told]

    def types(self) -> list[str]:
        """The types of everything told, the vendor's own left out."""
        return [e.draft.type for _, e in self.told if not e.draft.type.startswith("x.")]


def event_of(session: str, event: Emitted) -> dict[str, Any]:
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
