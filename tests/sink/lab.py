"""A sink as a process, and what it has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.app.processes import Command

Event = dict[str, Any]


class Sink(Command):
    """A running `aep-kimi sink`."""

    def __init__(self, out: Path, url: str, *options: str, token: str | None = None) -> None:
        environment = {"AEP_TOKEN": token} if token else {}
        super().__init__(environment, "sink", "--out", str(out), "--url", url, *options)


def contents(out: Path) -> dict[str, list[Event]]:
    """Every file of a folder, older parts first and as one; a line that is no event fails the test."""
    found: dict[str, list[Event]] = {}

    def parts(path: Path) -> tuple[str, int]:
        name, _, number = path.name.removesuffix(".jsonl").partition("~")
        return f"{path.parent.relative_to(out).as_posix()}/{name}", int(
            number
        ) if number.isdecimal() else 1 << 30

    for path in sorted(out.glob("*/*/*.jsonl"), key=parts):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n")
        found.setdefault(parts(path)[0], []).extend(json.loads(line) for line in text[:-1].split("\n"))
    return found


def ids(out: Path) -> list[str]:
    """The ids of all events, as often as they are there."""
    return [event["id"] for events in contents(out).values() for event in events]
