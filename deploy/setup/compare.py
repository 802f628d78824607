"""In what the registered hooks differ from those that `write` would register now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deploy.setup import blocks, fence
from deploy.setup.blocks import Call, Hook, Registration
from deploy.setup.document import Entry
from deploy.setup.edit import Config


def stale(config: Config, wanted: Registration) -> tuple[str, ...]:
    """In what the registered hooks differ from the wanted ones, empty if in nothing."""
    want = {hook.event: hook for hook in blocks.hooks(wanted)}
    have = {str(e.values.get("event")): e for e in config.own}
    reasons = []
    if missing := [event for event in want if event not in have]:
        reasons.append(f"events missing: {', '.join(missing)}")
    if extra := [event for event in have if event not in want]:
        reasons.append(f"events that this Kimi Code may not accept: {', '.join(extra)}")
    if len(config.own) > len(have):
        reasons.append("events registered twice")
    differing = [event for event in want if event in have and not _same(have[event], want[event])]
    reasons += _differences(config.calls, wanted, differing)
    if not reasons and config.shape == "fenced" and not _rendered(config, wanted):
        reasons.append("the fence was edited by hand")
    return tuple(reasons)


def _same(entry: Entry, hook: Hook) -> bool:
    return entry.values == {"event": hook.event, "command": hook.command, "timeout": hook.timeout}


def _rendered(config: Config, wanted: Registration) -> bool:
    region, eol = config.regions[0], config.document.eol
    body = blocks.render(blocks.hooks(wanted), eol)
    fenced = fence.wrap(body, eol, newline=region.newline, file=region.file)
    return config.document.text[region.start : region.end] == fenced


def _differences(calls: Mapping[str, Call], wanted: Registration, differing: Collection[str]) -> list[str]:
    reasons = []
    seen = [calls[event] for event in differing if event in calls]
    for what, want, have in (
        ("address", wanted.url, {c.url for c in seen}),
        ("interpreter", wanted.python, {c.python for c in seen}),
        ("shim", wanted.shim, {c.shim for c in seen}),
        ("token file", wanted.token_file, {c.token_file for c in seen}),
    ):
        if other := sorted(have - {want}):
            reasons.append(f"{what}: {other[0] or 'none'} instead of {want or 'none'}")
    if (held := calls.get("PreToolUse")) and (held.timeout_ms is not None) != wanted.control:
        reasons.append("control: not registered" if wanted.control else "control: registered")
    if differing and not reasons:
        reasons.append(f"changed by hand: {', '.join(differing)}")
    return reasons
