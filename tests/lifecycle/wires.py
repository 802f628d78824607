"""An editor and its agents to tell stories with: JSON-RPC in, events out, by the joins and the reducer."""

from __future__ import annotations

from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.lifecycle.cursors import Placed
from handlers.lifecycle.reducer import Emitted, Tick
from handlers.mapping.acp_joins import Joins, matters
from handlers.mapping.moments import Moment
from tests.lifecycle.shelf import START_MS, Shelf

S = "sess_1"


class Room:
    """The sessions of one emitter. `at` is the time of the last line, Unix milliseconds."""

    def __init__(self, *, capture: Capture = Capture.METADATA, deltas: bool = False) -> None:
        self.posture = Posture(capture=capture, acp_deltas=deltas)
        self.shelf = Shelf()
        self.events: dict[str, list[Emitted]] = {}
        self.at = START_MS

    def connect(self, link: str = "c0") -> Connection:
        return Connection(self, link)

    def feed(self, session: str, moment: Moment | Tick, link: str, number: int) -> list[Emitted]:
        happening = moment if isinstance(moment, Tick) else Placed(moment, f"acp.{link}", number)
        reduction = self.shelf.take(session, self.at, happening)
        self.events.setdefault(session, []).extend(reduction.events)
        return list(reduction.events)

    def wait(self, ms: int) -> list[Emitted]:
        """Time passes; ticks come when they are due. The events they tell."""
        until = self.at + ms
        told: list[Emitted] = []
        while due := self.shelf.due(until):
            self.at = max(self.at, due[0])
            told += self.feed(due[1], Tick(), "", 0)
        self.at = until
        return told

    def of(self, session: str = S) -> list[Emitted]:
        return self.events.get(session, [])


class Connection:
    """One agent process with its editor. Each call is one line; the events it told are returned."""

    def __init__(self, room: Room, link: str) -> None:
        self.room = room
        self.link = link
        self.joins = Joins()
        self.number = 0
        self.ids = {"c2a": 0, "a2c": 0}

    def line(self, direction: str, frame: dict[str, Any], *, after: int = 10) -> list[Emitted]:
        self.room.at += after
        self.number += 1
        told: list[Emitted] = []
        moments = self.joins.take(direction, frame, self.link, self.room.posture)
        # What is remembered is stored between two batches.
        self.joins = Joins.decode(self.joins.encode())
        for moment in moments:
            if matters(moment):
                told += self.room.feed(moment.session, moment, self.link, self.number)
        return told

    def ask(self, method: str, *, back: bool = False, **params: Any) -> tuple[int, list[Emitted]]:
        """A request to the agent, or `back` to the editor: its id, and the events."""
        direction = "a2c" if back else "c2a"
        number = self.ids[direction]
        self.ids[direction] += 1
        return number, self.line(direction, {"id": number, "method": method, "params": params})

    def answer(self, number: int, result: Any, *, back: bool = False) -> list[Emitted]:
        return self.line("c2a" if back else "a2c", {"id": number, "result": result})

    def refuse(
        self, number: int, code: int = -32600, message: str = "no", *, back: bool = False
    ) -> list[Emitted]:
        error = {"code": code, "message": message}
        return self.line("c2a" if back else "a2c", {"id": number, "error": error})

    def tell(self, method: str, *, back: bool = True, **params: Any) -> list[Emitted]:
        """A notification, to the editor unless `back` is False."""
        return self.line("a2c" if back else "c2a", {"method": method, "params": params})

    def end(self, code: int = 0) -> list[Emitted]:
        return self.line("end", {"exit": code, "lost": 0})

    # The usual moments, with a real agent's fields.

    def new(self, session: str = S) -> list[Emitted]:
        number, told = self.ask("session/new", cwd="/home/user/project", mcpServers=[])
        return told + self.answer(number, {"sessionId": session})

    def load(self, session: str = S, method: str = "session/load") -> list[Emitted]:
        number, told = self.ask(method, sessionId=session, cwd="/home/user/project", mcpServers=[])
        return told + self.answer(number, {})

    def prompt(self, session: str = S, text: str = "hello") -> tuple[int, list[Emitted]]:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def stop(self, number: int, reason: str = "end_turn") -> list[Emitted]:
        return self.answer(number, {"stopReason": reason})

    def update(self, session: str = S, /, **update: Any) -> list[Emitted]:
        return self.tell("session/update", sessionId=session, update=update)

    def call(self, call: str, title: str | None = "Bash", **more: Any) -> list[Emitted]:
        named = {} if title is None else {"title": title}
        return self.update(sessionUpdate="tool_call", toolCallId=call, status="pending", **named, **more)

    def progress(self, call: str, status: str, **more: Any) -> list[Emitted]:
        return self.update(sessionUpdate="tool_call_update", toolCallId=call, status=status, **more)

    def permission(self, call: str, session: str = S) -> tuple[int, list[Emitted]]:
        options = [{"optionId": "approve_once", "name": "Approve once", "kind": "allow_once"}]
        return self.ask(
            "session/request_permission",
            back=True,
            sessionId=session,
            options=options,
            toolCall={"toolCallId": call, "title": "Bash"},
        )

    def choose(self, number: int, option: str | None) -> list[Emitted]:
        chosen = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        return self.answer(number, {"outcome": chosen}, back=True)


def types(events: list[Emitted]) -> list[str]:
    """The types, shortened for the channel's own."""
    return [event.draft.type.replace("x.acp.", "x.") for event in events]
