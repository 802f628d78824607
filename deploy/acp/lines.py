"""Finds the frames in a copy of the wire: lines, whatever their length, in both directions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

LINE_LIMIT = 8 * 1024 * 1024
"""Bytes of a line that is told whole."""

_HEAD = 4096
_BLANK = b" \t\r\n"
_WORD = rb'"((?:[^"\\]|\\.){1,1024})"'
# The beginning of a frame as JSON-RPC libraries print it; nothing within a string can look like this.
_START = re.compile(
    rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*'
    rb'(?:,\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,1024}")\s*)?'
    rb'(?:,\s*"method"\s*:\s*"(?P<method>[^"\\]{1,256})"\s*)?'
    rb',\s*"(?P<body>params|result)"\s*:\s*\{'
    rb"(?:\s*\"sessionId\"\s*:\s*" + _WORD.replace(b"((", b"(?P<session>(") + rb"\s*)?"
    rb'(?:,\s*"update"\s*:\s*\{\s*"sessionUpdate"\s*:\s*"(?P<update>[^"\\]{1,64})"\s*'
    rb'(?:,\s*"toolCallId"\s*:\s*"(?P<call>[^"\\]{1,256})"\s*)?'
    rb'(?:,\s*"status"\s*:\s*"(?P<status>[^"\\]{1,32})"\s*)?)?'
)


@dataclass(slots=True)
class Lines:
    """The lines of one direction. A line that was cut by a loss is skipped up to its end."""

    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0
    _torn: bool = False

    def feed(self, data: bytes) -> list[tuple[bytes | None, bool]]:
        """Complete lines without their end, each with whether it is the head of a longer one; None for a
        torn line."""
        done: list[tuple[bytes | None, bool]] = []
        first, *rest = data.split(b"\n")
        self._add(first)
        for part in rest:
            done.append(self._take())
            self._add(part)
        return done

    def lose(self) -> None:
        """Some bytes are missing here: what is held is torn, and what comes up to the next end too."""
        self._parts, self._size, self._torn = [], 0, True

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._torn:
            return
        if self._size > LINE_LIMIT and self._size - len(part) <= LINE_LIMIT:
            self._parts = [(b"".join(self._parts) + part)[:_HEAD]]
        elif self._size <= LINE_LIMIT and part:
            self._parts.append(part)

    def _take(self) -> tuple[bytes | None, bool]:
        line = None if self._torn else b"".join(self._parts)
        cut = self._size > LINE_LIMIT
        self._parts, self._size, self._torn = [], 0, False
        return line, cut


def frames(line: bytes) -> list[bytes]:
    """The JSON-RPC objects of a line as JSON texts without line ends; none when it holds none.

    An object keeps its own spelling; the members of a batch are printed anew.
    """
    line = line.strip(_BLANK)
    if line[:1] not in (b"{", b"["):
        return []
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, list):
        return [json.dumps(one).encode() for one in value if _is_frame(one)]
    if not _is_frame(value):
        return []
    return [json.dumps(value).encode() if b"\r" in line else line]


def _is_frame(value: Any) -> bool:
    return isinstance(value, dict) and ("method" in value or "result" in value or "error" in value)


def head_frame(line: bytes) -> bytes | None:
    """What the head of an oversize line says for sure, as a frame without content."""
    start = _START.match(line)
    if start is None:
        return None
    frame: dict[str, Any] = {"jsonrpc": "2.0"}
    try:
        if start["id"] is not None:
            frame["id"] = json.loads(start["id"])
        body: dict[str, Any] = {}
        if start["session"] is not None:
            body["sessionId"] = json.loads(b'"' + start["session"] + b'"')
        if start["update"] is not None:
            update = {
                "sessionUpdate": start["update"],
                "toolCallId": start["call"],
                "status": start["status"],
            }
            body["update"] = {key: value.decode() for key, value in update.items() if value is not None}
        if start["method"] is not None:
            frame["method"] = start["method"].decode()
    except ValueError:
        return None
    frame[start["body"].decode()] = body
    return json.dumps(frame).encode()
