"""The ACP channel: one JSON-RPC moment of an editor and its agent in, one `Moment` out.

A moment is a request, a notification, or an answer (result or error) joined to the method it answers;
joining is the caller's, mapping is pure. The agent is `acp`, its types `x.acp.*` (AEP-0002 Annex A.13).
Every method has an outcome:

| Moment | Outcome |
| --- | --- |
| `session/new`, `session/load`, `session/resume`, `session/fork` answered | `session.started` |
| `session/close`, `session/delete` answered | `session.ended` |
| `session/prompt` asked | `run.started` |
| `session/prompt` answered | `run.finished`, `run.cancelled`, `run.failed` by `stopReason` |
| `session/prompt` refused (JSON-RPC error) | `run.failed` |
| `session/request_permission`, `elicitation/create` asked | `attention.requested` |
| … answered | `attention.answered`, or `attention.resolved` (`dismissed`) |
| `session/update` | the tool trio, `x.acp.plan.updated`, `x.acp.usage.updated`, else `x.acp.{kind}` |
| any other request or notification, either way | `x.acp.{method}`, without data |
| any other answer | nothing: it says no more than its request |
| any other error | `x.acp.{method}.error` with the JSON-RPC code |

Message and thought chunks are suppressed unless the posture asks for deltas (`AEP_ACP_DELTAS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.names import extension_type
from handlers.mapping.acp_asks import (
    elicitation_answered,
    elicitation_requested,
    permission_answered,
    permission_requested,
)
from handlers.mapping.acp_facts import facts
from handlers.mapping.acp_updates import chunk, plan, tool_call, tool_call_update, usage
from handlers.mapping.fields import Shape, digest_of, parts_text, session_id, table, text, token
from handlers.mapping.moments import Draft, Moment

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

Kind = Literal["request", "notification", "response", "error"]

_OPENERS: Mapping[str, str | None] = {
    "session/new": None,
    "session/load": "load",
    "session/resume": "resume",
    "session/fork": "fork",
}
_CLOSERS = frozenset({"session/close", "session/delete"})
_CHUNKS = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")


def map_moment(
    kind: Kind, method: str, body: JSONValue, posture: Posture, *, asked: JSONValue = None
) -> Moment:
    """Map one moment at the capture tier of `posture`. Pure; raises nothing, whatever is inside.

    `method` is the method asked for, also for an answer. `body` is `params`, `result` or `error`;
    `asked` is the `params` that an answer answers, where the caller knows them.
    """
    body, asked = table(body), table(asked)
    fallback = _fallback(kind, method, body, posture)
    partial: Draft | None = None
    if kind in ("request", "notification"):
        if method == "session/update":
            drafts, partial = _update(body, fallback, posture)
        else:
            drafts = (_asked(method, body, posture) or fallback,)
    elif kind == "response":
        answer = _answered(method, body, posture)
        drafts = () if answer is None else (answer,)
    else:
        drafts = (_refused(method, body, posture) or fallback,)
    return Moment(
        channel="acp",
        name=f"{kind}:{method}",
        session=session_id(body.get("sessionId") or asked.get("sessionId")),
        drafts=drafts,
        fallback=fallback,
        facts=facts(kind, method, body, asked),
        partial=partial,
    )


def _words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(name) if word]


def _fallback(kind: Kind, method: str, body: JSONObject, posture: Posture) -> Draft:
    if method == "session/update":
        update = table(body.get("update"))
        name = text(update.get("sessionUpdate"))
        if name == "tool_call_update":
            call = text(update.get("toolCallId"))
            shape = Shape(extension_type("acp", "tool_call", "update"), posture)
            shape.put(status=token(update.get("status")), args_digest=digest_of(update.get("rawInput")))
            return shape.draft(call)
        return Shape(extension_type("acp", *_words(name or method)), posture).draft()
    if kind == "error":
        shape = Shape(extension_type("acp", *_words(method), "error"), posture)
        return shape.put(code=_code(body)).draft()
    return Shape(extension_type("acp", *_words(method)), posture).draft()


def _code(error: JSONObject) -> int | None:
    code = error.get("code")
    if isinstance(code, bool) or not isinstance(code, int):
        return None
    return code if abs(code) < 2**31 else None


def _asked(method: str, params: JSONObject, posture: Posture) -> Draft | None:
    make = _REQUESTS.get(method)
    return None if make is None else make(params, posture)


def _prompt(params: JSONObject, posture: Posture) -> Draft:
    prompt = params.get("prompt")
    shape = Shape("run.started", posture).put(trigger="user", message_digest=digest_of(prompt))
    if shape.level.allows(Capture.REDACTED):
        shape.free("prompt", parts_text(prompt))
    return shape.draft()


_REQUESTS: Mapping[str, Callable[[JSONObject, Posture], Draft | None]] = {
    "session/prompt": _prompt,
    "session/request_permission": permission_requested,
    "elicitation/create": elicitation_requested,
}


def _answered(method: str, result: JSONObject, posture: Posture) -> Draft | None:
    if method in _OPENERS:
        shape = Shape("session.started", posture)
        return shape.put(client={"name": "acp"}, trigger=_OPENERS[method]).draft()
    if method in _CLOSERS:
        return Shape("session.ended", posture).put(reason="normal").draft()
    if method == "session/prompt":
        return _stopped(token(result.get("stopReason")), posture)
    if method == "session/request_permission":
        return permission_answered(result, posture)
    if method == "elicitation/create":
        return elicitation_answered(result, posture)
    return None


def _stopped(reason: str | None, posture: Posture) -> Draft:
    if reason == "cancelled":
        return Shape("run.cancelled", posture).put(by="user").draft()
    if reason == "refusal":
        return Shape("run.failed", posture).put(reason=reason).draft()
    return Shape("run.finished", posture).put(stop_reason=reason).draft()


def _refused(method: str, error: JSONObject, posture: Posture) -> Draft | None:
    if method == "session/prompt":
        shape = Shape("run.failed", posture)
        code = _code(error)
        info = shape.error(None if code is None else str(code), text(error.get("message")))
        return shape.put(reason="error", error=info or None).draft()
    if method in ("session/request_permission", "elicitation/create"):
        # The agent takes a failed call for a refusal; nobody answered.
        return Shape("attention.resolved", posture).put(resolution="dismissed").draft()
    return None


def _update(params: JSONObject, fallback: Draft, posture: Posture) -> tuple[tuple[Draft, ...], Draft | None]:
    update = table(params.get("update"))
    kind = update.get("sessionUpdate")
    if kind == "tool_call":
        return tool_call(update, posture) or (fallback,), None
    if kind == "tool_call_update":
        drafts, partial = tool_call_update(update, posture)
        return drafts or (fallback,), partial
    if kind == "plan":
        return (plan(update, posture),), None
    if kind == "usage_update":
        return (usage(update, posture),), None
    if isinstance(kind, str) and kind in _CHUNKS:
        return ((chunk(kind, update, posture),) if posture.acp_deltas else ()), None
    return (fallback,), None
