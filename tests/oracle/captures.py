"""The recorded hook events, by scenario, and the true runs of each scenario."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = ("0.28.0", "2.1.0")
FILES = ("hooks.jsonl", "hooks-subagents.jsonl")

# Fire-and-forget at the vendor: their arrival order is not their order (kimi-code hook runner).
UNAWAITED = frozenset(
    {
        "PostToolUse",
        "PostToolUseFailure",
        "PermissionRequest",
        "PermissionResult",
        "StopFailure",
        "Interrupt",
        "SubagentStop",
        "PostCompact",
        "Notification",
        "TurnStarted",
        "UserPromptQueued",
        "TaskStarted",
        "SessionHeartbeat",
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One arrival. `index` is its number within the scenario, `at` Unix milliseconds."""

    index: int
    at: float
    payload: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TrueRun:
    """A labelled run: rows of its beginning and end (None: the vendor fired none), and its terminal."""

    open: int
    end: int | None
    kind: str


@dataclass(frozen=True, slots=True)
class Scenario:
    version: str
    engine: str
    surface: str
    name: str
    subagents: bool
    rows: tuple[Row, ...]
    runs: tuple[TrueRun, ...]

    @property
    def label(self) -> str:
        return f"{self.version} {self.engine} {self.surface} {self.name}"

    def delayed(self, source: random.Random, up_to_ms: float) -> Scenario:
        """The same, with every fire-and-forget hook late by up to `up_to_ms`."""
        rows = [
            Row(row.index, row.at + source.uniform(0, up_to_ms), row.payload)
            if row.payload is not None and _name(row.payload) in UNAWAITED
            else row
            for row in self.rows
        ]
        rows.sort(key=lambda row: row.at)
        return Scenario(
            self.version, self.engine, self.surface, self.name, self.subagents, tuple(rows), self.runs
        )

    def followed(self, after_ms: float) -> Scenario:
        """With one more prompt `after_ms` later, whose run stays open; as it is, where the session ended."""
        payloads = [row.payload for row in self.rows if row.payload is not None]
        prompts = [payload for payload in payloads if _name(payload) == "UserPromptSubmit"]
        last = prompts[-1] if prompts else None
        ended = any(_name(payload) == "SessionEnd" for payload in payloads)
        if last is None or ended or len({prompt["session_id"] for prompt in prompts}) > 1:
            return self
        number = max(row.index for row in self.rows) + 1
        rows = (*self.rows, Row(number, max(row.at for row in self.rows) + after_ms, last))
        runs = (*self.runs, TrueRun(number, None, "open"))
        return Scenario(self.version, self.engine, self.surface, self.name, self.subagents, rows, runs)


def _name(payload: dict[str, Any]) -> str:
    name = payload["hook_event_name"]
    return name if isinstance(name, str) else ""


def load(root: Path) -> list[Scenario]:
    """Every scenario of the captures in `root`."""
    truth = {
        _key(entry): tuple(TrueRun(run["open"], run["end"], run["kind"]) for run in entry["runs"])
        for entry in json.loads((root / "run-truth.json").read_bytes())
    }
    found = []
    for version in VERSIONS:
        for file in FILES:
            for key, rows in _scenarios(root / version / file):
                found.append(Scenario(*key, file == FILES[1], tuple(rows), truth[key]))
    return found


def _scenarios(file: Path) -> Iterator[tuple[tuple[str, str, str, str], list[Row]]]:
    grouped: dict[tuple[str, str, str, str], list[Row]] = {}
    for line in file.read_text("utf-8").splitlines():
        entry = json.loads(line)
        rows = grouped.setdefault(_key(entry), [])
        rows.append(Row(len(rows), entry["t"] * 1000, entry["payload"]))
    yield from grouped.items()


def _key(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    return entry["version"], entry["engine"], entry["surface"], entry["scenario"]
