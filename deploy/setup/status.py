"""`status`: what is registered, as text or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from deploy.setup import compare, files
from deploy.setup import context as contexts
from deploy.setup.context import Context
from deploy.setup.errors import SetupError

State = Literal["absent", "current", "stale", "bare", "broken", "unreadable"]


@dataclass(frozen=True, slots=True)
class Status:
    """All that `status --json` tells. `stale`: how the hooks differ from what `write` would register now."""

    state: State
    stale: tuple[str, ...]
    error: str
    home: str
    config: str
    url: str
    token_file: str
    control: bool
    events: tuple[str, ...]
    interpreter: str
    shim: str
    observers: tuple[str, ...]
    kimi: str
    version: str
    engine: str
    accepts: int


def inspect(context: Context) -> Status:
    """Look, change nothing; an unreadable file is a state, not an error."""
    error, config = "", None
    try:
        config = contexts.load(context, files.read(context.config).data)
    except SetupError as found:
        error = str(found)
    wanted = context.wanted(config)
    calls = config.calls if config else {}
    call = next(iter(calls.values()), None)
    stale = compare.stale(config, wanted) if config and config.own else ()
    state: State = "unreadable" if error else "absent"
    if config and config.regions:
        shape = config.shape
        state = (
            "broken" if shape == "broken" else "bare" if shape == "bare" else "stale" if stale else "current"
        )
    held = calls.get("PreToolUse")
    return Status(
        state=state,
        stale=stale,
        error=error,
        home=str(context.home),
        config=str(context.config),
        url=call.url if call else "",
        token_file=call.token_file if call else "",
        control=held is not None and held.timeout_ms is not None,
        events=tuple(calls),
        interpreter=call.python if call else "",
        shim=call.shim if call else "",
        observers=tuple(f"line {e.line}: {e.command}" for e in config.observers) if config else (),
        kimi=context.vendor.path,
        version=context.version,
        engine=context.engine,
        accepts=len(context.events),
    )


def status(context: Context) -> int:
    """Print the state; 1 only if the file cannot be read."""
    found = inspect(context)
    if context.options.json:
        print(json.dumps(asdict(found), ensure_ascii=False, indent=2))
    else:
        for line in _lines(found):
            print(line)
    return 1 if found.state == "unreadable" else 0


def _lines(found: Status) -> list[str]:
    states = {
        "absent": "not registered; `aep-setup write kimi-code` registers the hooks",
        "current": "registered, up to date",
        "stale": "registered, out of date; `aep-setup write kimi-code` brings them up to date",
        "bare": "registered without the fence (Kimi Code strips comments when it saves settings); "
        "`aep-setup write kimi-code --refence` puts it back",
        "broken": "registered, but not in one whole fence; `aep-setup write kimi-code --refence` repairs it",
        "unreadable": f"unknown: {found.error}",
    }
    lines = [f"hooks       {states[found.state]}", *(f"            {reason}" for reason in found.stale)]
    lines.append(f"config      {found.config}")
    if found.events:
        lines += [
            f"address     {found.url}",
            f"token file  {found.token_file or 'none'}",
            f"control     {'tool calls can be held' if found.control else 'no'}",
            f"events      {len(found.events)}: {', '.join(found.events)}",
            f"command     {found.interpreter} -I -S {found.shim}",
        ]
    lines += [f"also        {observer}" for observer in found.observers]
    version = (
        f"{found.version}, engine {found.engine}, accepts {found.accepts} events"
        if found.version
        else "unknown"
    )
    lines.append(f"Kimi Code   {version}{f' ({found.kimi})' if found.kimi else ''}")
    return lines
