"""The recorded frames of `kimi web`, and what the main agent's turns in them truly were."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = ("0.28.0", "2.1.0")
ENDS = {"completed": "run.finished", "cancelled": "run.cancelled"}

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """One frame that the server sent on the capture's first connection; `at` Unix milliseconds."""

    at: int
    scenario: str
    frame: JSON


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the main agent: its id, and the AEP type of its end (None: not in the capture)."""

    id: int
    end: str | None


def heard(root: Path, version: str, connection: str = "main") -> list[Heard]:
    """Every frame of one connection, in order."""
    found = []
    for line in (root / version / "web-frames.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["conn"] == connection and row["dir"] == "recv" and "frame" in row:
            found.append(Heard(round(row["t"] * 1000), row["scenario"], row["frame"]))
    return found


def hooks(root: Path, version: str) -> list[tuple[int, JSON]]:
    """The hooks that fired beside those frames, with their time of arrival in Unix milliseconds."""
    found = []
    for line in (root / version / "hooks.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["surface"] == "web" and row["payload"] is not None:
            found.append((round(row["t"] * 1000), row["payload"]))
    return found


def turns(frames: list[Heard]) -> list[Turn]:
    """The main agent's turns, read naively: the truth that a run must match."""
    found: dict[int, str | None] = {}
    for one in frames:
        payload = one.frame.get("payload") or {}
        if payload.get("agentId") != "main":
            continue
        if one.frame["type"] == "turn.started":
            found[payload["turnId"]] = None
        elif one.frame["type"] == "turn.ended":
            found[payload["turnId"]] = ENDS.get(payload["reason"], "run.failed")
    return [Turn(number, end) for number, end in found.items()]


def session(frames: list[Heard]) -> str:
    """The one session of a capture."""
    names = {one.frame.get("session_id") for one in frames} - {None, "__global__"}
    assert len(names) == 1
    return str(names.pop())
