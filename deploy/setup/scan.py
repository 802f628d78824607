"""Where the statements of a TOML text stand. Strings, arrays and inline tables are skipped, never read.

`tomllib` and `tomlkit` say what a text means, not where. A marker comment or a header that stands inside a
multi-line string is no statement, so a search by lines would be wrong (TOML 1.1.0).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Literal

from deploy.setup.errors import Unreadable

Kind = Literal["comment", "key", "table", "array"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_BLANK = re.compile(r"[ \t]*")
_REST = re.compile(r"[^\n]*")
_PLAIN = re.compile(r"[^\"'#\[\]{}\n]+")
_LONG = {
    '"""': re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''(?:[^']|'(?!''))*'{3,5}"),
}
_SHORT = {'"': _BASIC, "'": _LITERAL}


@dataclass(frozen=True, slots=True)
class Statement:
    """One comment line, `key = value`, `[table]` or `[[array]]`.

    `start` and `end` are offsets of whole lines (the last line's ending included); `line` counts from 1;
    `path` is the key as written in this statement, empty for a comment.
    """

    kind: Kind
    start: int
    end: int
    line: int
    path: tuple[str, ...] = ()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1

    def statements(self) -> list[Statement]:
        found = []
        while self.at < len(self.text):
            start, line = self.at, self.line
            self._skip(_BLANK)
            kind, path = self._statement(line)
            self._end_line(line)
            if kind is not None:
                found.append(Statement(kind, start, self.at, line, path))
        return found

    def _statement(self, line: int) -> tuple[Kind | None, tuple[str, ...]]:
        if self._at_line_end():
            return None, ()
        if self._looking("#"):
            self._skip(_REST)
            return "comment", ()
        if self._looking("[["):
            return "array", self._header(2, line)
        if self._looking("["):
            return "table", self._header(1, line)
        path = self._key(line)
        self._expect("=", line)
        self._value(line)
        return "key", path

    def _header(self, brackets: int, line: int) -> tuple[str, ...]:
        self.at += brackets
        path = self._key(line)
        self._expect("]" * brackets, line)
        return path

    def _key(self, line: int) -> tuple[str, ...]:
        parts = []
        while True:
            self._skip(_BLANK)
            for pattern in (_BARE, _BASIC, _LITERAL):
                if found := pattern.match(self.text, self.at):
                    break
            else:
                raise Unreadable(line, "no key or table name stands here; put one in or delete the line")
            self.at = found.end()
            parts.append(found[0] if pattern is _BARE else _decode(found[0], line))
            self._skip(_BLANK)
            if not self._looking("."):
                return tuple(parts)
            self.at += 1

    def _value(self, line: int) -> None:
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\"'":
                self._string(char)
            elif char == "\n":
                if not depth:
                    return
                self.at += 1
                self.line += 1
            elif char == "#":
                self._skip(_REST)
            elif char in "[]{}":
                depth += 1 if char in "[{" else -1
                self.at += 1
            else:
                self._skip(_PLAIN)
        if depth > 0:
            raise Unreadable(line, "an array or inline table opens here and is never closed; close it")

    def _string(self, quote: str) -> None:
        long = self.text.startswith(quote * 3, self.at)
        found = (_LONG[quote * 3] if long else _SHORT[quote]).match(self.text, self.at)
        if found is None:
            raise Unreadable(self.line, "a string opens here and is never closed; close it")
        self.at = found.end()
        self.line += found[0].count("\n")

    def _end_line(self, line: int) -> None:
        self._skip(_BLANK)
        if self._looking("#"):
            self._skip(_REST)
        if not self._at_line_end():
            raise Unreadable(
                line, "something stands behind the statement; put it on a line of its own or delete it"
            )
        self.at = self.text.find("\n", self.at) + 1 or len(self.text)
        self.line += 1

    def _at_line_end(self) -> bool:
        return self.at >= len(self.text) or self._looking("\n") or self._looking("\r\n")

    def _expect(self, mark: str, line: int) -> None:
        self._skip(_BLANK)
        if not self._looking(mark):
            raise Unreadable(line, f"`{mark}` is missing; put it in or delete the line")
        self.at += len(mark)

    def _looking(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if found := pattern.match(self.text, self.at):
            self.at = found.end()


def _decode(quoted: str, line: int) -> str:
    try:
        return str(tomllib.loads(f"k = {quoted}")["k"])
    except tomllib.TOMLDecodeError:
        raise Unreadable(
            line, "this quoted key has an escape that cannot be read; write it plainly"
        ) from None


def scan(text: str) -> list[Statement]:
    """The statements of `text` in order; raises Unreadable where the text cannot be TOML."""
    return _Scanner(text).statements()
