"""The vendor's strict schema of the hooks section, with lines and remedies.

Source: kimi-code 2.1.0 `kimi doctor` and its hooks section; one bad entry disables all hooks, with a warning
that the interactive program does not show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.setup.blocks import EVENTS_20
from deploy.setup.document import Document, Entry, parse, place
from deploy.setup.errors import Unreadable
from deploy.setup.scan import scan

LARGEST_INT = 2**53 - 1
"""Kimi Code refuses a whole file that holds a larger integer."""

_FIELDS = ("event", "matcher", "command", "timeout")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that disables the hooks: where, what, and what to do; `entry` is its index in `hooks`."""

    line: int
    what: str
    remedy: str
    entry: int = -1

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}; {self.remedy}"


def check(document: Document, accepted: Collection[str] = EVENTS_20) -> list[Problem]:
    """All that Kimi Code would refuse in the hooks section, `accepted` being the events its version knows."""
    hooks = document.data.get("hooks")
    line = where.line if (where := document.top_level("hooks")) else 1
    if hooks is None:
        return []
    if isinstance(hooks, Mapping):
        return [
            Problem(line, "`hooks` is a table", "write each hook as a [[hooks]] table, with double brackets")
        ]
    if not isinstance(hooks, list):
        return [Problem(line, "`hooks` is no array of tables", "delete this line")]
    return [problem for entry in document.entries for problem in _entry(entry, accepted)]


def obstacle(document: Document) -> Problem | None:
    """What makes an append of `[[hooks]]` tables impossible, if anything."""
    where = document.top_level("hooks")
    if where is None:
        return None
    hooks = document.data.get("hooks")
    if hooks == []:
        return Problem(
            where.line,
            "`hooks = []` forbids every [[hooks]] table",
            "delete this line, or let `aep-setup write kimi-code --fix` take it out",
        )
    if isinstance(hooks, list):
        return Problem(
            where.line,
            "`hooks` is an inline array, which no [[hooks]] table can follow",
            "write each of its elements as a [[hooks]] table of its own, then run again",
        )
    return Problem(
        where.line,
        "`hooks` is a plain table or value here, which no [[hooks]] table can follow",
        "write each hook as a [[hooks]] table, with double brackets, then run again",
    )


def large_integers(document: Document) -> list[Problem]:
    """Integers that make Kimi Code refuse the whole file, at most one per top-level key."""
    found = []
    for name, value in document.data.items():
        if any(abs(n) > LARGEST_INT for n in _integers(value)):
            line = next((s.line for s in document.statements if s.path[:1] == (name,)), 1)
            found.append(
                Problem(line, f"`{name}` holds an integer above 2^53", "write it as a string or float")
            )
    return found


def seeded(text: str) -> tuple[int, int, int] | None:
    """`(start, end, line)` of an empty top-level `hooks = []`, also where [[hooks]] tables follow it."""
    try:
        statements = scan(text)
    except Unreadable:
        return None
    found = place(statements, "hooks")
    if found is None or found.kind != "key" or found.path != ("hooks",):
        return None
    try:
        value = parse(text[found.start : found.end])["hooks"]
    except Unreadable:
        return None
    if value != []:
        return None
    return found.start, found.end, found.line


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _integers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _integers(part)


def _entry(entry: Entry, accepted: Collection[str]) -> Iterator[Problem]:
    values = entry.values

    def problem(key: str, what: str, remedy: str) -> Problem:
        return Problem(entry.line_of(key), f"hooks[{entry.index}] has {what}", remedy, entry.index)

    for key in values:
        if key not in _FIELDS:
            yield problem(
                key,
                f"the key `{key}`, and Kimi Code then ignores every hook",
                "move it above the first [table] if it is a setting, else delete it",
            )
    event = values.get("event")
    if event is None:
        yield problem("event", "no event", "give it one or remove this entry")
    elif event not in tuple(accepted):
        newer = event in EVENTS_20
        yield problem(
            "event",
            f"the event {event!r}, which this Kimi Code does not know"
            if newer
            else f"the unknown event {event!r}",
            "remove this entry or update Kimi Code" if newer else "correct or remove this entry",
        )
    command = values.get("command")
    if not isinstance(command, str) or not command:
        yield problem("command", "no command", "give it one or remove this entry")
    if not isinstance(values.get("matcher", ""), str):
        yield problem("matcher", "a matcher that is no string", "put it in quotes")
    timeout = values.get("timeout", 1)
    whole = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout == timeout // 1
    if not whole or not 1 <= timeout <= 600:
        yield problem("timeout", f"the timeout {timeout!r}", "write whole seconds from 1 to 600")
