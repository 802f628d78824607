"""Frames and hooks through mapping and reducer alone, with the capture's clock and its ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import JSONObject
from handlers.lifecycle.reducer import Emitted, Happening, Tick
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.web import Resync
from handlers.mapping.hooks import map_hook
from handlers.mapping.web import Mode, map_frame
from tests.lifecycle.shelf import START_MS, Shelf, finished

SESSION = "session_web_1"
EPOCH = "ep_1"


@dataclass(slots=True)
class Stage:
    """One service's sessions: encoded states, moved by frames, hooks and ticks."""

    mode: Mode = "primary"
    posture: Posture = field(default_factory=Posture)
    shelf: Shelf = field(default_factory=Shelf)
    told: list[tuple[str, Emitted]] = field(default_factory=list)
    at: int = START_MS

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
        return self.shelf.state(session)

    def wait(self, until: int) -> None:
        """Let time pass up to Unix ms `until`."""
        while due := self.shelf.due(until):
            self.feed(due[1], Tick(), due[0])
        self.at = max(self.at, until)

    def feed(self, session: str, happening: Happening, at: int | None = None) -> list[Emitted]:
        self.at = self.at + 10 if at is None else at
        reduction = self.shelf.take(session, self.at, happening)
        self.told += [(session, event) for event in reduction.events]
        return list(reduction.events)

    def events(self) -> list[dict[str, Any]]:
        """Everything told, as a consumer gets it."""
        return [finished(emitted, session) for session, emitted in self.told]

    def types(self) -> list[str]:
        """The types of everything told, the vendor's own left out."""
        return [e.draft.type for _, e in self.told if not e.draft.type.startswith("x.")]
