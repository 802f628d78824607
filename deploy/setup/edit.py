"""From a config text to the text with our hooks, or without them. Pure: no file, no clock."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deploy.setup import blocks, fence, schema
from deploy.setup.blocks import EVENTS_20, Call, Hook, Registration
from deploy.setup.document import Document, Entry, decode
from deploy.setup.errors import SetupError, Unreadable
from deploy.setup.fence import Stripped
from deploy.setup.schema import Problem


@dataclass(frozen=True)
class Config:
    """A config with what of ours is in it. `mark` is its byte order mark, or empty."""

    name: str
    mark: str
    document: Document
    regions: tuple[fence.Region, ...]

    @property
    def own(self) -> tuple[Entry, ...]:
        return tuple(entry for region in self.regions for entry in region.entries)

    @property
    def shape(self) -> str:
        """`absent`, `fenced` (one whole fence and nothing else), `bare`, or `broken` (anything else)."""
        shapes = [region.shape for region in self.regions]
        if not shapes:
            return "absent"
        if set(shapes) == {"bare"}:
            return "bare"
        return "fenced" if shapes == ["fenced"] else "broken"

    @property
    def observers(self) -> tuple[Entry, ...]:
        """Entries of others that look like an observer of the same kind."""
        return tuple(e for e in self.document.entries if e not in self.own and blocks.is_observer(e.command))

    @property
    def calls(self) -> dict[str, Call]:
        """Our commands, taken apart, by event."""
        pairs = ((str(e.values.get("event")), blocks.parse_command(e.command)) for e in self.own)
        return {event: call for event, call in pairs if call}


@dataclass(frozen=True, slots=True)
class Edit:
    """A new content (`data` None: the file goes) and what to say about it."""

    data: bytes | None
    notes: tuple[str, ...] = ()


def load(data: bytes, name: str) -> Config:
    """Read a config; raises SetupError that names the line and the remedy."""
    mark, text = decode(data, name)
    try:
        document = Document(text)
        return Config(name, mark, document, fence.regions(document, is_mine))
    except Unreadable as error:
        place = f"{name}, line {error.line}" if error.line else name
        if seeded := schema.seeded(text):
            raise SetupError(
                f"{name}, line {seeded[2]}: `hooks = []` forbids the [[hooks]] tables below it; delete this "
                "line, or let `aep-setup write kimi-code --fix` take it out"
            ) from None
        raise SetupError(f"{place}: {error.what}") from None
    except SetupError as error:
        raise SetupError(f"{name}, {error}") from None


def is_mine(command: str) -> bool:
    return blocks.parse_command(command) is not None


def fix(data: bytes, name: str) -> bytes:
    """The content without an empty `hooks = []`, which other tools seed; unchanged if there is none."""
    mark, text = decode(data, name)
    found = schema.seeded(text)
    if found is None:
        return data
    return (mark + text[: found[0]] + text[found[1] :]).encode()


def write(
    data: bytes | None,
    name: str,
    wanted: Registration,
    *,
    accepted: Collection[str] = EVENTS_20,
    refence: bool = False,
    beside: bool = False,
) -> Edit:
    """The content with exactly the wanted hooks; raises SetupError where that cannot be right.

    `accepted`: the events that others may have. `refence`: what is ours is taken out and one fresh fence is
    appended. `beside`: another observer of the same kind is accepted.
    """
    config = load(data or b"", name)
    _refuse(config, accepted, beside)
    if config.shape == "bare" and not refence:
        return _keep_bare(config, data, wanted)
    stray = [e for r in config.regions if r.shape == "bare" for e in r.entries]
    if stray and not refence:
        raise SetupError(
            f"{name}, line {stray[0].line}: hooks of aep-setup stand outside its fence and double every "
            "event; run `aep-setup write kimi-code --refence`, which puts all into one fence"
        )
    text = config.document.text
    bare = fence.strip(config.document, config.regions)
    eol = config.document.eol
    new = fence.insert(
        bare.text,
        None if refence else bare.at,
        blocks.render(blocks.hooks(wanted), eol),
        eol,
        newline=bare.newline and not refence,
        file=data is None or bare.file,
    )
    _verify(config, bare, new, wanted, accepted)
    if new == text and data is not None:
        return Edit(data, ("up to date, nothing to do",))
    return Edit((config.mark + new).encode("utf-8"), _warnings(config))


def _warnings(config: Config) -> tuple[str, ...]:
    """What keeps Kimi Code from reading the whole file, with us or without."""
    notes = [f"but {config.name}, {problem}" for problem in schema.large_integers(config.document)]
    if config.mark:
        notes.insert(0, "but Kimi Code cannot read a file with a byte order mark; save it without one")
    return tuple(notes)


def remove(data: bytes, name: str) -> Edit:
    """The content as it would be without us."""
    config = load(data, name)
    if config.shape == "absent":
        return Edit(data, ("no hooks of aep-setup are in it, nothing to do",))
    bare = fence.strip(config.document, config.regions)
    base = _base(config, bare)
    if bare.file and not bare.text:
        return Edit(None, ("aep-setup had made this file",))
    notes = tuple(f"but {name}, {problem}" for problem in schema.check(base))
    return Edit((config.mark + bare.text).encode("utf-8"), notes)


def difference(old: bytes | None, new: bytes | None, name: str) -> str:
    """A unified diff without context lines, so that no key of the config is shown."""
    before, after = ((data or b"").decode("utf-8", "replace").splitlines() for data in (old, new))
    return "\n".join(difflib.unified_diff(before, after, name, name, lineterm="", n=0))


def _refuse(config: Config, accepted: Collection[str], beside: bool) -> None:
    obstacle = schema.obstacle(config.document)
    if obstacle:
        raise SetupError(f"{config.name}, {obstacle}")
    own = {entry.index for entry in config.own}
    foreign = [p for p in schema.check(config.document, accepted) if p.entry not in own]
    if foreign:
        raise SetupError(f"{config.name}, {foreign[0]}; then run again")
    if config.observers and not beside:
        entry = config.observers[0]
        raise SetupError(
            f"{config.name}, line {entry.line}: another observer is registered (`{entry.command}`) and every "
            "event would be seen twice; remove it, or run again with --beside if you want both"
        )


def _keep_bare(config: Config, data: bytes | None, wanted: Registration) -> Edit:
    have = [dict(entry.values) for entry in config.own]
    if have != [{"event": h.event, "command": h.command, "timeout": h.timeout} for h in blocks.hooks(wanted)]:
        raise SetupError(
            f"{config.name}: the hooks are there without their fence (Kimi Code strips comments when it "
            f"saves settings) and out of date; run `aep-setup write kimi-code --refence`"
        )
    return Edit(
        data,
        (
            "up to date; the fence is gone (Kimi Code strips comments when it saves settings), "
            "`aep-setup write kimi-code --refence` puts it back",
        ),
    )


def _verify(
    config: Config, bare: Stripped, new: str, wanted: Registration, accepted: Collection[str]
) -> None:
    """Refuse a text that says anything but the old one and our hooks."""
    base = _base(config, bare)
    if problem := schema.obstacle(base) or next(iter(schema.check(base, accepted)), None):
        raise SetupError(f"{config.name}, {_at_home(config, bare, problem)}; then run again")
    try:
        document = Document(new)
    except Unreadable as error:
        raise SetupError(
            f"{config.name}: with our hooks this would not be TOML ({error}); simplify that part of the file"
        ) from None
    own = [e for e in document.entries if is_mine(e.command)]
    for entry in own:
        for key in entry.values:
            if key not in ("event", "command", "timeout"):
                raise SetupError(
                    f"{config.name}, line {_line_below(config, key)}: `{key}` stands below the hooks of "
                    "aep-setup and joins them; move it above the first [table], or run "
                    "`aep-setup write kimi-code --refence`, which puts the hooks below it"
                )
    said = tuple(Hook(e.values["event"], e.command, e.values["timeout"]) for e in own)
    rest = dict(document.data)
    rest["hooks"] = [dict(e.values) for e in document.entries if e not in own]
    if said != blocks.hooks(wanted) or not _equal(rest, {"hooks": [], **base.data}):
        raise SetupError(
            f"{config.name}: our hooks would change the meaning of other lines; run "
            "`aep-setup write kimi-code --refence`, which puts them at the end"
        )


def _base(config: Config, bare: Stripped) -> Document:
    """The text without us; raises SetupError where it is not TOML."""
    try:
        return Document(bare.text)
    except Unreadable as error:
        line = _old_line(config, bare, error.line)
        raise SetupError(f"{config.name}, line {line}: without our hooks {error.what}") from None


def _at_home(config: Config, bare: Stripped, problem: Problem) -> Problem:
    """The problem with the line that it has in the file as it is."""
    return replace(problem, line=_old_line(config, bare, problem.line))


def _old_line(config: Config, bare: Stripped, line: int) -> int:
    offset = 0
    for _ in range(line - 1):
        offset = bare.text.find("\n", offset) + 1
    return config.document.line_at(bare.origin(offset))


def _line_below(config: Config, key: str) -> int:
    """The line of a key that stands below one of our regions."""
    ends = [region.end for region in config.regions]
    below = (s for s in config.document.statements if key in s.path and ends and s.start >= ends[0])
    return next((s.line for s in below), 1)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))
