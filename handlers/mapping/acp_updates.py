"""`session/update` of the ACP channel: tool calls, the plan, usage, chunks.

A real kimi names the tool in the first `tool_call` only; later titles are the command in the making, and
the last update carries no title at all. So a terminal comes as `partial` too, for the reducer to name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handlers.aep.levels import JSONObject, JSONValue
from handlers.aep.names import extension_type
from handlers.mapping.fields import Shape, count, digest_of, name, table, text, token
from handlers.mapping.moments import Draft

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

_STATUSES = ("pending", "in_progress", "completed")


def tool_call(update: JSONObject, posture: Posture) -> tuple[Draft, ...]:
    """The request, and the terminal too where the call arrives done (a replay, an instant tool)."""
    tool = _tool(update)
    if tool is None:
        return ()
    args = update.get("rawInput")
    shape = Shape("tool.requested", posture)
    shape.put(tool=tool, kind=token(update.get("kind")), args_digest=digest_of(args))
    asked = shape.full("args", args, (dict,)).draft(text(update.get("toolCallId")))
    done = _terminal(update, tool, posture)
    return (asked,) if done is None else (asked, done)


def tool_call_update(update: JSONObject, posture: Posture) -> tuple[tuple[Draft, ...], Draft | None]:
    """`(drafts, partial)`: both empty for what is not a terminal."""
    call = text(update.get("toolCallId"))
    if call is None:
        return (), None
    tool = _tool(update)
    named = None if tool is None else _terminal(update, tool, posture)
    return (() if named is None else (named,)), _terminal(update, {"call_id": call}, posture)


def _tool(update: JSONObject) -> JSONObject | None:
    title, call = name(update.get("title")), text(update.get("toolCallId"))
    if title is None:
        return None
    return {"name": title} if call is None else {"name": title, "call_id": call}


def _terminal(update: JSONObject, tool: JSONObject, posture: Posture) -> Draft | None:
    status = update.get("status")
    subject = text(update.get("toolCallId"))
    if status == "failed":
        shape = Shape("tool.failed", posture)
        message = text(update.get("rawOutput")) or content_text(update.get("content"))
        return shape.put(tool=tool, error=shape.error("tool_error", message)).draft(subject)
    if status != "completed":
        return None
    result = update.get("rawOutput")
    if result is None:
        result = content_text(update.get("content"))
    shape = Shape("tool.completed", posture).put(tool=tool, result_digest=digest_of(result))
    return shape.full("result", result, (dict, str)).draft(subject)


def content_text(value: JSONValue) -> str | None:
    """The text blocks of a tool call's content, one a line."""
    if not isinstance(value, list):
        return None
    texts = [text(table(table(block).get("content")).get("text")) for block in value]
    return "\n".join(one for one in texts if one is not None) or None


def plan(update: JSONObject, posture: Posture) -> Draft:
    """Counts by status only: plan entries have no id, and a diff would make identity up."""
    entries = update.get("entries")
    statuses = [table(entry).get("status") for entry in entries] if isinstance(entries, list) else []
    shape = Shape(extension_type("acp", "plan", "updated"), posture)
    counts = {f"entries_{status}": statuses.count(status) or None for status in _STATUSES}
    return shape.put(**counts).draft()


def usage(update: JSONObject, posture: Posture) -> Draft:
    """`usedTokens`/`outputTokens` of the record; the living vendor says `used` of `size`, the context's."""
    used = count(update.get("usedTokens"))
    shape = Shape(extension_type("acp", "usage", "updated"), posture)
    return shape.put(
        **{
            "gen_ai.usage.input_tokens": count(update.get("used")) if used is None else used,
            "gen_ai.usage.output_tokens": count(update.get("outputTokens")),
            "size": count(update.get("size")),
        }
    ).draft()


def chunk(kind: str, update: JSONObject, posture: Posture) -> Draft:
    shape = Shape(extension_type("acp", *kind.split("_")), posture)
    return shape.free("delta", text(table(update.get("content")).get("text"))).draft()
