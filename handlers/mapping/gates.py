"""What a human is asked about a held tool call, at the capture tier of the posture."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import orjson

from handlers.aep.envelope import rfc3339
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.mapping.fields import Shape, name, table, text
from handlers.mapping.hooks import VENDOR
from handlers.mapping.moments import Draft

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

INTERACTIVE = frozenset({"AskUserQuestion", "ExitPlanMode"})
"""Tools that are themselves a question to the user: held only where they are named (kimi-code 2.1.0)."""

_TELLING = ("command", "path", "file_path", "url", "query", "pattern", "description", "prompt")
_LONGEST = 2_000
_LABELS = (("allow", "Allow"), ("deny", "Deny"))


def is_gated(payload: JSONObject, scope: Sequence[str]) -> bool:
    """Whether the hook of this payload is to be held.

    `scope` are names or patterns (`mcp__*`) of tools, empty for all. A call without an id cannot be held:
    nothing would tell it from others.
    """
    tool = text(payload.get("tool_name"))
    if payload.get("hook_event_name") != "PreToolUse" or tool is None:
        return False
    if text(payload.get("tool_call_id")) is None:
        return False
    if tool in INTERACTIVE:
        return tool in scope
    return not scope or any(fnmatchcase(tool, pattern) for pattern in scope)


def gate_request(payload: JSONObject, posture: Posture, until_ms: int) -> Draft:
    """The `attention.requested` of a held call (AEP-0002 §5.3); `until_ms` is Unix milliseconds.

    Two options, as the adapter's design record has it: the hook can deny and can never approve.
    """
    tool = name(payload.get("tool_name"))
    shape = Shape("attention.requested", posture)
    worded = shape.level.allows(Capture.REDACTED)
    prompt = shape.prose(_summary(tool or "", payload.get("tool_input"))) if worded else None
    options: list[JSONValue] = [
        {"id": option, "label": label if worded else option} for option, label in _LABELS
    ]
    shape.put(
        kind="permission",
        prompt=prompt or f"{VENDOR} requests permission" + (f": {tool}" if tool else ""),
        options=options,
        expires_at=rfc3339(until_ms),
        respond_via=["control"],
    )
    args = payload.get("tool_input")
    return shape.full(
        "context", {"tool": tool, "args": args} if isinstance(args, dict) else None, (dict,)
    ).draft(tool)


def _summary(tool: str, args: JSONValue) -> str:
    """The call in one text: the argument that says what it does, else all of them."""
    fields = table(args)
    said = next((found for key in _TELLING if (found := text(fields.get(key))) is not None), None)
    if said is None:
        if not fields:
            return tool
        try:
            said = orjson.dumps(fields).decode()
        except TypeError:
            return tool
    return f"{tool}: {said if len(said) <= _LONGEST else said[:_LONGEST] + '…'}"
