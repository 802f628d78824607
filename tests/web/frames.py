"""Frames as the server of the vendor sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.web.stage import EPOCH, SESSION

JSON = dict[str, Any]


class Journal:
    """One session's numbered frames."""

    def __init__(
        self, session: str = SESSION, epoch: str = EPOCH, seq: int = 0, *, old: bool = False
    ) -> None:
        self.old = old
        self.session = session
        self.epoch = epoch
        self.seq = seq
        self.hour = 14
        self.frames: list[JSON] = []

    def add(self, kind: str, **payload: Any) -> JSON:
        """The next frame, of the main agent unless told otherwise."""
        self.seq += 1
        frame = {
            "type": kind,
            "seq": self.seq,
            "epoch": self.epoch,
            "session_id": self.session,
            "timestamp": f"2026-11-30T{self.hour}:{self.seq // 60 % 60:02d}:{self.seq % 60:02d}.000Z",
            "payload": {"type": kind, "agentId": "main", "sessionId": self.session, **payload},
        }
        self.frames.append(frame)
        return frame

    def rewind(self, count: int) -> None:
        """A server that was killed: its journal lacks the last frames, whose numbers it gives again."""
        del self.frames[-count:]
        self.seq -= count
        self.hour += 1

    def turn(self, number: int, *, reason: str = "completed", calls: Sequence[str] = ()) -> list[JSON]:
        """A whole turn with its tool calls."""
        first = len(self.frames)
        self.add("turn.started", turnId=number, origin={"kind": "user"})
        for call in calls:
            self.call(number, call)
        self.add("turn.ended", turnId=number, reason=reason, durationMs=5_000)
        return self.frames[first:]

    def call(self, turn: int, call: str, *, name: str = "Bash", agent: str = "main") -> None:
        """A tool call and its result."""
        self.add("tool.call.started", turnId=turn, toolCallId=call, name=name, args={}, agentId=agent)
        self.add("tool.result", turnId=turn, toolCallId=call, output="ok", isError=False, agentId=agent)

    def approval(self, turn: int, approval: str, *, call: str = "call_1") -> JSON:
        return self.add(
            "event.approval.requested",
            approval_id=approval,
            turn_id=turn,
            tool_call_id=call,
            tool_name="Bash",
            action="Running: echo hello",
        )

    @property
    def turn_in_flight(self) -> int | None:
        """The main agent's turn that has no end yet."""
        turn = None
        for frame in self.frames:
            payload = frame.get("payload") or {}
            if payload.get("agentId") == "main" and frame["type"] in ("turn.started", "turn.ended"):
                turn = payload["turnId"] if frame["type"] == "turn.started" else None
        return turn

    @property
    def pending(self) -> list[JSON]:
        """The approvals that have no end yet."""
        asked: dict[str, JSON] = {}
        for frame in self.frames:
            if frame["type"] == "event.approval.requested":
                asked[frame["payload"]["approval_id"]] = {**frame["payload"], "agent_id": "main"}
            elif frame["type"] == "event.approval.resolved":
                asked.pop(frame["payload"]["approval_id"], None)
        return list(asked.values())

    def resolved(self, approval: str, decision: str | None, **more: Any) -> JSON:
        given = {} if decision is None else {"decision": decision}
        return self.add("event.approval.resolved", approval_id=approval, **given, **more)

    def __iter__(self) -> Iterator[JSON]:
        return iter(self.frames)


def body(lines: Iterator[JSON] | Sequence[JSON] | Journal) -> bytes:
    """Frames as a batch."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
