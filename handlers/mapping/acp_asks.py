"""The editor's gates on the ACP channel: permission requests and forms, observed and never answered.

No `options`, no `respond_via`: the choices ride as a count, the answer comes in the editor (`oob`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handlers.aep.levels import Capture, JSONObject
from handlers.mapping.acp_updates import content_text
from handlers.mapping.fields import Shape, name, table, text, token
from handlers.mapping.moments import Draft

if TYPE_CHECKING:
    from handlers.aep.capture import Posture


def permission_requested(params: JSONObject, posture: Posture) -> Draft:
    """`Permission requested: {title}` at redacted+, with the call's own text below it where it has one."""
    call = table(params.get("toolCall"))
    subject = text(call.get("toolCallId"))
    shape = Shape("attention.requested", posture)
    title = shape.prose(text(call.get("title")))
    detail = shape.prose(content_text(call.get("content")))
    if title is None and detail is None:
        prompt = "acp requests permission" + ("" if subject is None else f": {name(subject)}")
    else:
        prompt = "Permission requested" + ("" if title is None else f": {title}")
        prompt += "" if detail is None else f"\n{detail}"
    options = params.get("options")
    return shape.put(
        kind="permission", prompt=prompt, options_count=len(options) if isinstance(options, list) else None
    ).draft(subject)


def permission_answered(result: JSONObject, posture: Posture) -> Draft | None:
    outcome = table(result.get("outcome"))
    option = token(outcome.get("optionId"))
    if outcome.get("outcome") == "cancelled":
        return Shape("attention.resolved", posture).put(resolution="dismissed").draft()
    if outcome.get("outcome") != "selected" or option is None:
        return None
    return Shape("attention.answered", posture).put(answer={"option": option}, via="oob").draft()


def elicitation_requested(params: JSONObject, posture: Posture) -> Draft:
    """A form in the editor: its message at redacted+, its fields as a count."""
    shape = Shape("attention.requested", posture)
    fields = table(table(params.get("requestedSchema")).get("properties"))
    prompt = shape.prose(text(params.get("message"))) or "acp requests form"
    return shape.put(kind="form", prompt=prompt, fields_count=len(fields)).draft()


def elicitation_answered(result: JSONObject, posture: Posture) -> Draft | None:
    """`accept` answers; `decline` and `cancel` dismiss. Numbers and flags at metadata, words at redacted+."""
    action = result.get("action")
    if action in ("decline", "cancel"):
        return Shape("attention.resolved", posture).put(resolution="dismissed").draft()
    if action != "accept":
        return None
    shape = Shape("attention.answered", posture)
    content = table(result.get("content"))
    if shape.level.allows(Capture.REDACTED):
        content = shape.structure(content) or {}
    else:
        content = {k: v for k, v in content.items() if token(k) and isinstance(v, bool | int | float)}
    return shape.put(answer={"values": content} if content else {}, via="oob").draft()
