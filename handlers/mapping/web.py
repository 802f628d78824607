"""The `kimi web` channel: one frame of the kap-server's WebSocket in, one `Moment` out, or nothing.

Companion mode (hooks are registered too) says only that the channel saw something: `x.kimi-code.web.*`
without data. Primary mode carries the whole story, the vendor's real turn boundaries as runs. In
neither mode do volatile frames, control frames or the vendor's own echoes become events, and no
session lifecycle is made up: kap sessions outlive connections (AEP-0002 Annex A.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from handlers.aep.levels import Capture, JSONObject
from handlers.aep.names import extension_type
from handlers.mapping.fields import (
    UNKNOWN_SESSION,
    Shape,
    count,
    digest_of,
    flag,
    name,
    parts_text,
    table,
    text,
    timestamp_ms,
    token,
)
from handlers.mapping.moments import Draft, Moment
from handlers.mapping.web_asks import (
    approval_requested,
    approval_resolved,
    question_answered,
    question_dismissed,
    question_requested,
)
from handlers.mapping.web_facts import facts

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

Mode = Literal["companion", "primary"]

MAIN_AGENT = "main"
GLOBAL_SESSION = "__global__"

# What the protocol itself says, and what the vendor says twice (kap-server sessionEventBroadcaster).
_CONTROL = frozenset(
    {
        "server_hello",
        "client_hello",
        "ack",
        "ping",
        "pong",
        "subscribe",
        "unsubscribe",
        "resync_required",
        "transcript.reset",
        "transcript.ops",
    }
)
_ECHOES = frozenset(
    {
        "permission.approval.requested",
        "permission.approval.resolved",
        "background.task.started",
        "background.task.terminated",
    }
)
_SEPARATORS = re.compile(r"[./]+")


def map_frame(frame: JSONObject, mode: Mode, posture: Posture) -> Moment | None:
    """Map one frame as received. None: the frame is never an event, in either mode. Raises nothing."""
    kind = text(frame.get("type"))
    if kind is None or frame.get("volatile") or kind in _CONTROL or kind in _ECHOES:
        return None
    payload = table(frame.get("payload"))
    fallback = _fallback(kind, payload, mode, posture)
    drafts: tuple[Draft, ...] = (fallback,)
    partial: Draft | None = None
    if mode == "primary":
        make = _PRIMARY.get(kind)
        draft = None if make is None else make(payload, posture)
        if draft is not None:
            drafts = (draft,)
        elif kind == "tool.result":
            # The wire names no tool here: a result is told only through its request.
            drafts, partial = (), _tool_result(payload, posture)
    return Moment(
        channel="web",
        name=kind,
        session=session_of(frame),
        drafts=drafts,
        fallback=fallback,
        facts=facts(kind, frame, payload),
        time_ms=timestamp_ms(frame.get("timestamp")),
        partial=partial,
    )


def session_of(frame: JSONObject) -> str:
    """The envelope's session, or the payload's where the envelope says `__global__`."""
    payload = table(frame.get("payload"))
    for value in (frame.get("session_id"), payload.get("sessionId"), payload.get("session_id")):
        found = text(value)
        if found is not None and found != GLOBAL_SESSION:
            return found
    return UNKNOWN_SESSION


def _fallback(kind: str, payload: JSONObject, mode: Mode, posture: Posture) -> Draft:
    shape = Shape(extension_type("kimi-code", "web", *_SEPARATORS.split(kind)), posture)
    if mode == "primary":
        if kind == "event.session.work_changed":
            shape.put(
                busy=flag(payload.get("busy")), pending_interaction=token(payload.get("pending_interaction"))
            )
        elif kind.startswith("compaction."):
            shape.put(trigger=token(payload.get("trigger")))
    return shape.draft()


def _is_main(p: JSONObject) -> bool:
    agent = text(p.get("agentId"))
    return agent is None or agent == MAIN_AGENT


def _turn_started(p: JSONObject, posture: Posture) -> Draft | None:
    if not _is_main(p):
        return None
    origin = token(table(p.get("origin")).get("kind"))
    trigger = None if origin is None else {"user": "user", "cron_job": "schedule"}.get(origin, "agent")
    shape = Shape("run.started", posture).put(trigger=trigger)
    if shape.level.allows(Capture.REDACTED):
        shape.free("prompt", parts_text(p.get("prompt")))
    return shape.draft()


def _turn_ended(p: JSONObject, posture: Posture) -> Draft | None:
    reason = token(p.get("reason"))
    if reason is None or not _is_main(p):
        return None
    if reason == "completed":
        return Shape("run.finished", posture).draft()
    if reason == "cancelled":
        # No `by`: the channel does not say who.
        return Shape("run.cancelled", posture).draft()
    shape = Shape("run.failed", posture)
    error = table(p.get("error"))
    info = shape.error(token(error.get("name")) or token(error.get("code")), text(error.get("message")))
    return shape.put(reason=reason, error=info or None).draft()


def _tool_started(p: JSONObject, posture: Posture) -> Draft | None:
    tool_name, call = name(p.get("name")), text(p.get("toolCallId"))
    if tool_name is None:
        return None
    tool: JSONObject = {"name": tool_name} if call is None else {"name": tool_name, "call_id": call}
    args = p.get("args")
    shape = Shape("tool.requested", posture).put(tool=tool, args_digest=digest_of(args))
    return shape.full("args", args, (dict,)).draft(tool_name)


def _tool_result(p: JSONObject, posture: Posture) -> Draft | None:
    call, output = text(p.get("toolCallId")), p.get("output")
    if call is None:
        return None
    if p.get("isError") is True:
        shape = Shape("tool.failed", posture)
        return shape.put(tool={"call_id": call}, error=shape.error("tool_error", parts_text(output))).draft()
    shape = Shape("tool.completed", posture).put(tool={"call_id": call}, result_digest=digest_of(output))
    return shape.full("result", output, (dict, str)).draft()


def _subagent_started(p: JSONObject, posture: Posture) -> Draft | None:
    child = text(p.get("subagentId"))
    if child is None:
        return None
    kind = name(p.get("subagentName"))
    shape = Shape("delegation.subagent.started", posture).put(child={"agent": child}, agent_type=kind)
    return shape.draft(kind or name(child))


def _subagent_stopped(status: str) -> Callable[[JSONObject, Posture], Draft | None]:
    def stopped(p: JSONObject, posture: Posture) -> Draft | None:
        child = text(p.get("subagentId"))
        if child is None:
            return None
        shape = Shape("delegation.subagent.stopped", posture).put(child={"agent": child}, status=status)
        return shape.free("response", text(p.get("resultSummary"))).draft(name(child))

    return stopped


def _compacted(p: JSONObject, posture: Posture) -> Draft | None:
    if not _is_main(p):
        return None
    tokens = count(table(p.get("result")).get("tokensAfter"))
    return Shape("session.compacted", posture).put(estimated_token_count=tokens).draft()


def _task(event_type: str) -> Callable[[JSONObject, Posture], Draft | None]:
    def changed(p: JSONObject, posture: Posture) -> Draft | None:
        info = table(p.get("info"))
        task_id = text(info.get("taskId"))
        if task_id is None:
            return None
        shape = Shape(event_type, posture)
        task: JSONObject = {"id": task_id}
        title = shape.prose(text(info.get("description")))
        if title is not None:
            task["title"] = title
        status = token(info.get("status")) if event_type == "progress.task.completed" else None
        return shape.put(task=task, status=status).draft(name(task_id))

    return changed


_PRIMARY: Mapping[str, Callable[[JSONObject, Posture], Draft | None]] = {
    "turn.started": _turn_started,
    "turn.ended": _turn_ended,
    "tool.call.started": _tool_started,
    "event.approval.requested": approval_requested,
    "event.approval.resolved": approval_resolved,
    "event.question.requested": question_requested,
    "event.question.answered": question_answered,
    "event.question.dismissed": question_dismissed,
    "subagent.spawned": _subagent_started,
    "subagent.completed": _subagent_stopped("completed"),
    "subagent.failed": _subagent_stopped("failed"),
    "compaction.completed": _compacted,
    "task.started": _task("progress.task.planned"),
    "task.terminated": _task("progress.task.completed"),
}
