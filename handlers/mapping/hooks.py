"""Kimi Code's external hooks: one stdin payload in, one `Moment` out.

The sixteen events of kimi-code 0.28 (AEP-0002 Annex A.6) and the four that 0.32 added. What is not
known degrades to `x.kimi-code.session.{event}` and is never dropped. `cwd`, `turn_id` and
`stop_hook_active` never ride in an event; `turn_id` is a fact for the reducer only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.names import extension_type, snake
from handlers.mapping.fields import (
    Shape,
    bare,
    count,
    digest_of,
    flag,
    name,
    parts_text,
    session_id,
    table,
    text,
    token,
)
from handlers.mapping.hook_facts import facts
from handlers.mapping.moments import Draft, Moment

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

VENDOR = "kimi-code"
_LONG = 128

_END_REASONS: Mapping[str, str] = {
    "exit": "normal",
    "archive": "normal",
    **{word: word for word in ("normal", "error", "timeout", "killed", "compaction")},
}


def map_hook(payload: JSONObject, posture: Posture) -> Moment:
    """Map one hook payload at the capture tier of `posture`. Pure; raises nothing, whatever is inside."""
    event = payload.get("hook_event_name")
    event = event if isinstance(event, str) else ""
    if event == "PreCompact" or len(event) > _LONG:
        fallback = _fallback(event, payload, posture)
    else:
        fallback = _bare_fallback(event, posture.capture)
    make = _EVENTS.get(event)
    draft = make(payload, posture) if make is not None else None
    return Moment(
        channel="hook",
        name=event,
        session=session_id(payload.get("session_id")),
        drafts=(fallback if draft is None else draft,),
        fallback=fallback,
        facts=facts(event, payload),
    )


@lru_cache(maxsize=256)
def _bare_fallback(event: str, level: Capture) -> Draft:
    """The fallback of an event that tells nothing of its payload: always the same one."""
    return bare(extension_type(VENDOR, "session", snake(event)), level)


def _fallback(event: str, payload: JSONObject, posture: Posture) -> Draft:
    shape = Shape(extension_type(VENDOR, "session", snake(event)), posture)
    if event == "PreCompact":
        shape.put(trigger=token(payload.get("trigger")), token_count=count(payload.get("token_count")))
    return shape.draft()


def _session_start(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape("session.started", posture).put(trigger=token(p.get("source")))
    return shape.free("label", text(p.get("session_title"))).draft()


def _session_end(p: JSONObject, posture: Posture) -> Draft:
    reason = p.get("reason")
    return (
        Shape("session.ended", posture)
        .put(reason=_END_REASONS.get(reason) if isinstance(reason, str) else None)
        .draft()
    )


def _prompt_submit(p: JSONObject, posture: Posture) -> Draft:
    if p.get("is_steer") is True:
        shape = Shape(extension_type(VENDOR, "run", "steer_submitted"), posture)
    else:
        shape = Shape("run.started", posture).put(trigger="user")
    return _with_prompt(shape, p).draft()


def _with_prompt(shape: Shape, p: JSONObject) -> Shape:
    # Joining is work on what may be megabytes: only where the text can ride.
    if shape.level.allows(Capture.REDACTED):
        shape.free("prompt", parts_text(p.get("prompt")))
    return shape


def _stop(_: JSONObject, posture: Posture) -> Draft:
    return Shape("run.finished", posture).draft()


def _stop_failure(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape("run.failed", posture)
    kind = token(p.get("error_type"))
    return shape.put(
        reason=kind or "error", error=shape.error(kind, text(p.get("error_message"))) or None
    ).draft()


def _interrupt(p: JSONObject, posture: Posture) -> Draft:
    # The vendor fires it for any cancelled turn; only its word `cancelled` is the user's own.
    by = "user" if p.get("reason") == "cancelled" else None
    return Shape("run.cancelled", posture).put(by=by).draft()


def _tool(p: JSONObject) -> tuple[str, JSONObject] | None:
    """The tool's name, and what an event says of the call."""
    tool_name = name(p.get("tool_name"))
    if tool_name is None:
        return None
    call = text(p.get("tool_call_id"))
    return tool_name, {"name": tool_name} if call is None else {"name": tool_name, "call_id": call}


def _pre_tool_use(p: JSONObject, posture: Posture) -> Draft | None:
    tool = _tool(p)
    if tool is None:
        return None
    args = p.get("tool_input")
    shape = Shape("tool.requested", posture).put(tool=tool[1], args_digest=digest_of(args))
    return shape.full("args", args, (dict,)).draft(tool[0])


def _post_tool_use(p: JSONObject, posture: Posture) -> Draft | None:
    tool = _tool(p)
    if tool is None:
        return None
    result = p.get("tool_output")
    shape = Shape("tool.completed", posture).put(tool=tool[1], result_digest=digest_of(result))
    return shape.full("result", result, (dict, str)).draft(tool[0])


def _post_tool_use_failure(p: JSONObject, posture: Posture) -> Draft | None:
    tool = _tool(p)
    if tool is None:
        return None
    error = p.get("error")
    info = table(error)
    message = text(error if isinstance(error, str) else info.get("message"))
    shape = Shape("tool.failed", posture)
    return shape.put(
        tool=tool[1], error=shape.error(token(info.get("name")) or _code(info.get("code")), message)
    ).draft(tool[0])


def _code(value: JSONValue) -> str | None:
    number = count(value)
    return token(value) if number is None else str(number)


def _permission_request(p: JSONObject, posture: Posture) -> Draft:
    subject = name(p.get("tool_name"))
    shape = Shape("attention.requested", posture)
    # `display` is a string in the record and an object with the host's cwd on the wire.
    prompt = shape.prose(text(p.get("display")) or text(p.get("action")))
    if prompt is None:
        prompt = f"{VENDOR} requests permission" + ("" if subject is None else f": {subject}")
    return shape.put(kind="permission", prompt=prompt, respond_via=["oob"]).draft(subject)


def _permission_result(p: JSONObject, posture: Posture) -> Draft | None:
    decision = p.get("decision")
    if decision == "cancelled":
        return Shape("attention.resolved", posture).put(resolution="dismissed").draft()
    if decision not in ("approved", "rejected"):
        return None
    shape = Shape("attention.answered", posture)
    answer: JSONObject = {"option": decision}
    feedback = shape.prose(text(p.get("feedback")))
    if feedback is not None:
        answer["text"] = feedback
    return shape.put(answer=answer, via="oob").label(text(p.get("selected_label"))).draft()


def _subagent_start(p: JSONObject, posture: Posture) -> Draft:
    shape = _with_prompt(Shape("delegation.subagent.started", posture), p)
    return shape.draft(name(p.get("agent_name")))


def _subagent_stop(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape("delegation.subagent.stopped", posture).free("response", text(p.get("response")))
    return shape.draft(name(p.get("agent_name")))


def _post_compact(p: JSONObject, posture: Posture) -> Draft:
    return (
        Shape("session.compacted", posture)
        .put(trigger=token(p.get("trigger")), estimated_token_count=count(p.get("estimated_token_count")))
        .draft()
    )


def _notification(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape("progress.status", posture).put(severity=token(p.get("severity")))
    return shape.free("message", text(p.get("title"))).draft(token(p.get("notification_type")))


def _turn_started(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape(extension_type(VENDOR, "session", "turn_started"), posture)
    shape.put(origin_kind=token(p.get("origin_kind")), origin_name=token(p.get("origin_name")))
    return _with_prompt(shape, p).draft()


def _prompt_queued(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape(extension_type(VENDOR, "session", "user_prompt_queued"), posture)
    shape.put(prompt_id=token(p.get("prompt_id")), queue_length=count(p.get("queue_length")))
    return _with_prompt(shape, p).draft()


def _task_started(p: JSONObject, posture: Posture) -> Draft:
    task = token(p.get("task_id"))
    shape = Shape(extension_type(VENDOR, "session", "task_started"), posture).put(
        task_id=task,
        kind=token(p.get("kind")),
        status=token(p.get("status")),
        detached=flag(p.get("detached")),
        started_at=count(p.get("started_at")),
    )
    return shape.free("description", text(p.get("description"))).draft(task)


def _heartbeat(p: JSONObject, posture: Posture) -> Draft:
    shape = Shape(extension_type(VENDOR, "session", "session_heartbeat"), posture)
    return shape.put(uptime_ms=count(p.get("uptime_ms"))).draft()


_EVENTS: Mapping[str, Callable[[JSONObject, Posture], Draft | None]] = {
    "SessionStart": _session_start,
    "SessionEnd": _session_end,
    "UserPromptSubmit": _prompt_submit,
    "Stop": _stop,
    "StopFailure": _stop_failure,
    "Interrupt": _interrupt,
    "PreToolUse": _pre_tool_use,
    "PostToolUse": _post_tool_use,
    "PostToolUseFailure": _post_tool_use_failure,
    "PermissionRequest": _permission_request,
    "PermissionResult": _permission_result,
    "SubagentStart": _subagent_start,
    "SubagentStop": _subagent_stop,
    "PostCompact": _post_compact,
    "Notification": _notification,
    "TurnStarted": _turn_started,
    "UserPromptQueued": _prompt_queued,
    "TaskStarted": _task_started,
    "SessionHeartbeat": _heartbeat,
}
