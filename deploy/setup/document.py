"""A `config.toml` as text and as data: where each hook entry stands and what it says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from deploy.setup.errors import SetupError, Unreadable
from deploy.setup.scan import Statement, scan

BOM = "\ufeff"
_LINE = re.compile(r"\(?at line (\d+)[^)]*\)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of `hooks`: `index` in the array, `line` from 1, its lines `[start, end)`, what it says.

    `keys` are the statements inside it. An entry of an inline array has the span of the whole array.
    """

    index: int
    line: int
    start: int
    end: int
    values: Mapping[str, Any]
    keys: tuple[Statement, ...] = ()
    inline: bool = False

    @property
    def command(self) -> str:
        value = self.values.get("command")
        return value if isinstance(value, str) else ""

    def line_of(self, key: str) -> int:
        """The line of one of its keys, else of its header."""
        return next((s.line for s in self.keys if key in s.path), self.line)


@dataclass(frozen=True)
class Document:
    """A parsed text (without its byte order mark); raises Unreadable when made from anything but TOML."""

    text: str
    data: Mapping[str, Any] = field(init=False)
    statements: tuple[Statement, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", parse(self.text))
        object.__setattr__(self, "statements", tuple(scan(self.text)))

    @property
    def eol(self) -> str:
        """The ending of the last line that has one."""
        last = self.text.rfind("\n")
        return "\r\n" if last > 0 and self.text[last - 1] == "\r" else "\n"

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The elements of `hooks`, empty where it is no array of tables."""
        hooks = self.data.get("hooks")
        if not isinstance(hooks, list):
            return ()
        tables = _tables(self.statements)
        if tables:
            pairs = zip(tables, hooks, strict=True)
            return tuple(
                Entry(i, span[0].line, span[0].start, span[-1].end, values, tuple(span[1:]))
                for i, (span, values) in enumerate(pairs)
            )
        place = self.top_level("hooks")
        return tuple(
            Entry(
                i,
                place.line if place else 1,
                place.start if place else 0,
                place.end if place else 0,
                values if isinstance(values, Mapping) else {},
                inline=True,
            )
            for i, values in enumerate(hooks)
        )

    def top_level(self, name: str) -> Statement | None:
        """The statement that makes `name` a top-level value or plain table, not an array of tables."""
        return place(self.statements, name)

    def line_at(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def place(statements: tuple[Statement, ...] | list[Statement], name: str) -> Statement | None:
    """The first top-level key or plain table called `name` (or below it)."""
    top = True
    for statement in statements:
        named = statement.path[:1] == (name,)
        if named and (statement.kind == "table" or (top and statement.kind == "key")):
            return statement
        if named and statement.kind == "array":
            return None
        top = top and statement.kind in ("comment", "key")
    return None


def _tables(statements: tuple[Statement, ...]) -> list[list[Statement]]:
    """The statements of each `[[hooks]]` table, header first, comments left out."""
    tables: list[list[Statement]] = []
    inside = False
    for statement in statements:
        if statement.kind == "array" and statement.path == ("hooks",):
            tables.append([statement])
            inside = True
        elif statement.kind in ("table", "array"):
            inside = bool(tables) and statement.path[:1] == ("hooks",)
            if inside:
                tables[-1].append(statement)
        elif statement.kind == "key" and inside:
            tables[-1].append(statement)
    return tables


def parse(text: str) -> dict[str, Any]:
    """What the text says. TOML 1.1, which Kimi Code reads too, is left to tomlkit; raises Unreadable."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        first = error
    try:
        return tomlkit.parse(text).unwrap()
    except (TOMLKitError, ValueError, TypeError, IndexError, KeyError):
        pass
    said = str(first)
    found = _LINE.search(said)
    line = int(found[1]) if found else 0
    try:
        scan(text)
    except Unreadable as error:
        if not line or error.line <= line:
            raise
    what = _LINE.sub("", said).strip()
    raise Unreadable(line, f"this is not TOML ({what}); correct it, then run again")


def decode(data: bytes, name: str) -> tuple[str, str]:
    """`(byte order mark or "", text)`; raises SetupError unless the bytes are UTF-8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SetupError(
            f"{name}, line {line}: this is not UTF-8; save the file as UTF-8, then run again"
        ) from None
    return (BOM, text[1:]) if text.startswith(BOM) else ("", text)
