"""The recorded ACP conversations, as the lines that a tee would post of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = ("0.28.0", "2.1.0")
_DIRECTIONS = {"client->agent": "c2a", "agent->client": "a2c"}


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt of the wire and what the wire said became of it: a stop reason, an error code, or nothing."""

    session: str
    asked_ms: int
    stop: str | int | None


@dataclass(frozen=True, slots=True)
class Capture:
    """One version's capture. `lines` are posted lines by connection, in the order of the wire."""

    version: str
    lines: dict[str, list[dict[str, Any]]]
    scenarios: tuple[str, ...]

    def turns(self) -> list[Turn]:
        """Every prompt, in order, with the answer that its own connection and id got."""
        found = []
        for lines in self.lines.values():
            answers = {
                line["frame"]["id"]: line["frame"]
                for line in lines
                if line["dir"] == "a2c" and "method" not in line["frame"] and "id" in line["frame"]
            }
            for line in lines:
                frame = line["frame"]
                if frame.get("method") != "session/prompt":
                    continue
                answer = answers.get(frame["id"], {})
                stop = answer["error"]["code"] if "error" in answer else answer["result"]["stopReason"]
                found.append(Turn(frame["params"]["sessionId"], line["t"], stop))
        return found


def load(root: Path) -> list[Capture]:
    """Every capture in `root`, one of each version."""
    return [_load(version, root / version / "acp.jsonl") for version in VERSIONS]


def _load(version: str, file: Path) -> Capture:
    lines: dict[str, list[dict[str, Any]]] = {}
    scenarios: dict[str, None] = {}
    for row in file.read_text("utf-8").splitlines():
        entry = json.loads(row)
        scenarios[entry["scenario"]] = None
        conn = f"{entry['conn']}-{version.replace('.', '')}"
        known = lines.setdefault(conn, [])
        frame, direction = entry["msg"], _DIRECTIONS.get(entry["dir"])
        if direction is None:
            frame, direction = {"exit": frame["exit_code_after_stdin_eof"], "lost": 0}, "end"
        elif "jsonrpc" not in frame:
            continue
        known.append(
            {
                "n": len(known) + 1,
                "t": int(entry["t"] * 1000),
                "dir": direction,
                "conn": conn,
                "frame": frame,
            }
        )
    return Capture(version, lines, tuple(scenarios))
