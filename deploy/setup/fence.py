"""The marker-fenced block: find it, take it out, put it in. Pure text, exact outside the fence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from deploy.setup.document import Document, Entry
from deploy.setup.errors import SetupError

_BEGIN = re.compile(r"\s*# >>> aep-kimi hooks((?: \+(?:newline|file))*) >>>")
_END = re.compile(r"\s*# <<< aep-kimi hooks <<<")

Mine = Callable[[str], bool]
"""Whether a command is ours."""


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of the text that is ours: `[start, end)`, whole lines.

    `fenced`: between both markers. `half`: one marker is gone, the entries beside the other tell the extent.
    `bare`: entries without any marker, as the vendor leaves them when it rewrites the file.
    `newline`: the line ending before the fence is ours too. `file`: so is the file.
    """

    start: int
    end: int
    shape: Literal["fenced", "half", "bare"]
    entries: tuple[Entry, ...] = ()
    newline: bool = False
    file: bool = False


@dataclass(frozen=True, slots=True)
class Stripped:
    """A text without us. `at` is where the last fence stood, None where there was none.

    `kept` are the stretches of the old text that it is made of.
    """

    text: str
    at: int | None
    newline: bool
    file: bool
    kept: tuple[tuple[int, int], ...]

    def origin(self, offset: int) -> int:
        """Where something of this text stands in the old one."""
        for start, end in self.kept:
            if offset < end - start:
                return start + offset
            offset -= end - start
        return self.kept[-1][1]


def wrap(body: str, eol: str, *, newline: bool, file: bool) -> str:
    """The fence around `body`."""
    marks = (" +newline" if newline else "") + (" +file" if file else "")
    return (
        f"# >>> aep-kimi hooks{marks} >>> written by aep-setup; `aep-setup remove kimi-code` undoes it{eol}"
        f"{body}# <<< aep-kimi hooks <<<{eol}"
    )


def regions(document: Document, mine: Mine) -> tuple[Region, ...]:
    """All that is ours, in order; raises SetupError where something else stands inside a fence."""
    fences = _fences(document, mine)
    found = tuple(sorted((*fences, *_bare(document, fences, mine)), key=lambda r: r.start))
    for region in found:
        _check_inside(document, region, mine)
    return found


def strip(document: Document, found: tuple[Region, ...]) -> Stripped:
    """The text without these regions."""
    text = document.text
    kept: list[tuple[int, int]] = []
    at: int | None = None
    newline = file = False
    done = 0
    tail = _tail(text, found)
    for region in found:
        start, end = _extent(text, region, last=region.start >= tail)
        kept.append((done, max(start, done)))
        done = max(end, done)
        if region.shape != "bare":
            at, newline, file = sum(b - a for a, b in kept), region.newline, region.file
    kept.append((done, len(text)))
    return Stripped("".join(text[a:b] for a, b in kept), at, newline, file, tuple(kept))


def insert(text: str, at: int | None, body: str, eol: str, *, newline: bool, file: bool) -> str:
    """Put the fence at an offset, or at the end of the text (None)."""
    at = len(text) if at is None else at
    gap = bool(at) and text[at - 1] != "\n"
    fence = wrap(body, eol, newline=gap or (newline and 0 < at < len(text)), file=file)
    return text[:at] + (eol if gap else "") + fence + text[at:]


def _tail(text: str, found: tuple[Region, ...]) -> int:
    """Where the regions begin that end the text, its length if none does."""
    tail = len(text)
    for region in reversed(found):
        if region.end != tail:
            break
        tail = region.start
    return tail


def _extent(text: str, region: Region, *, last: bool) -> tuple[int, int]:
    """What goes when a region is taken out: its lines, and the line endings that came with it."""
    start, end = region.start, region.end
    if region.shape == "bare":
        if text[end:].strip():
            while (line := _blank_line(text, end)) > end:
                end = line
        else:
            while (line := _blank_before(text, start)) < start:
                start = line
    elif region.newline and last:
        if text.endswith("\r\n", 0, start):
            start -= 2
        elif text.endswith("\n", 0, start):
            start -= 1
    return start, end


def _blank_line(text: str, at: int) -> int:
    """The end of the blank line at `at`, else `at`."""
    found = re.compile(r"[ \t]*(?:\r?\n|\Z)").match(text, at)
    return found.end() if found else at


def _blank_before(text: str, at: int) -> int:
    """The start of the blank line that ends at `at`, else `at`."""
    if not text.endswith("\n", 0, at):
        return at
    start = text.rfind("\n", 0, at - 1) + 1
    return start if not text[start:at].strip() else at


def _fences(document: Document, mine: Mine) -> list[Region]:
    found: list[Region] = []
    opened: tuple[int, int, str] | None = None
    for statement in document.statements:
        if statement.kind != "comment":
            continue
        line = document.text[statement.start : statement.end]
        if begin := _BEGIN.match(line):
            if opened:
                found.append(_after(document, opened, mine, statement.start))
            opened = (statement.start, statement.end, begin[1])
        elif _END.match(line):
            if opened:
                found.append(_region(document, opened, statement.end, "fenced"))
            else:
                found.append(_before(document, statement.start, statement.end, mine, found))
            opened = None
    if opened:
        found.append(_after(document, opened, mine, len(document.text)))
    return found


def _region(
    document: Document, opened: tuple[int, int, str], end: int, shape: Literal["fenced", "half"]
) -> Region:
    start, _, marks = opened
    inside = tuple(e for e in document.entries if not e.inline and start <= e.start < end)
    return Region(start, end, shape, inside, "+newline" in marks, "+file" in marks)


def _after(document: Document, opened: tuple[int, int, str], mine: Mine, limit: int) -> Region:
    """A fence without its end: its marker, and the entries of ours that follow it directly."""
    end = opened[1]
    for entry in document.entries:
        if (
            entry.start >= end
            and entry.end <= limit
            and _own(entry, mine)
            and _nothing(document, end, entry.start)
        ):
            end = entry.end
    return _region(document, opened, end, "half")


def _before(document: Document, start: int, end: int, mine: Mine, found: list[Region]) -> Region:
    """A fence without its begin: the entries of ours that stand directly before its marker."""
    floor = found[-1].end if found else 0
    inside: list[Entry] = []
    for entry in reversed(document.entries):
        if floor <= entry.start < start and _own(entry, mine) and _nothing(document, entry.end, start):
            start = entry.start
            inside.insert(0, entry)
    return Region(start, end, "half", tuple(inside))


def _bare(document: Document, fences: list[Region], mine: Mine) -> list[Region]:
    found: list[Region] = []
    for entry in document.entries:
        if not _own(entry, mine) or any(f.start <= entry.start < f.end for f in fences):
            continue
        last = found[-1] if found else None
        if last and _nothing(document, last.end, entry.start):
            found[-1] = Region(last.start, entry.end, "bare", (*last.entries, entry))
        else:
            found.append(Region(entry.start, entry.end, "bare", (entry,)))
    return found


def _own(entry: Entry, mine: Mine) -> bool:
    return not entry.inline and mine(entry.command)


def _nothing(document: Document, start: int, end: int) -> bool:
    return not document.text[start:end].strip()


def _check_inside(document: Document, region: Region, mine: Mine) -> None:
    """A region may hold only entries of ours, also edited ones; what else stands there would be lost."""
    own = {e.start for e in region.entries if "command" not in e.values or mine(e.command)}
    spans = [(e.start, e.end) for e in region.entries if e.start in own]
    for statement in document.statements:
        if statement.kind == "comment" or not region.start <= statement.start < region.end:
            continue
        inside = any(start <= statement.start < end for start, end in spans)
        plain = statement.kind == "array" or statement.path in (
            ("event",),
            ("matcher",),
            ("command",),
            ("timeout",),
        )
        if not inside or not plain:
            raise SetupError(
                f"line {statement.line}: this stands among the hooks of aep-setup but is not one of them; "
                "move it above the first [table] if it is a setting, below the fence if it is a table"
            )
