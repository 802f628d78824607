"""What the reducer and the frame handler may know of a web frame: ids, counts and machine words.

Questions and answers appear as digests only: `questions` is `[[id, digest(text), [[option id,
digest(label)], ...]], ...]`, `answers` is `[[digest(question text), [digest(label), ...]], ...]`, the
whole answer's digest first and those of its comma-separated parts after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from handlers.aep.canonical import digest
from handlers.aep.levels import JSONObject, JSONValue
from handlers.mapping.fields import count, flag, name, table, text, token
from handlers.mapping.web_asks import items, question_key

_MAX_ASKED = 64


def _turn(value: JSONValue) -> int | str | None:
    number = count(value)
    return text(value) if number is None else number


_READERS: Mapping[str, tuple[str, Callable[[JSONValue], JSONValue]]] = {
    "agentId": ("agent_id", text),
    "turnId": ("turn_id", _turn),
    "turn_id": ("turn_id", _turn),
    "toolCallId": ("tool_call_id", text),
    "tool_call_id": ("tool_call_id", text),
    "tool_name": ("tool_name", name),
    "name": ("tool_name", name),
    "approval_id": ("request_id", text),
    "question_id": ("request_id", text),
    "reason": ("reason", token),
    "interruptReason": ("interrupt_reason", token),
    "durationMs": ("duration_ms", count),
    "decision": ("decision", token),
    "isError": ("is_error", flag),
    "promptId": ("prompt_id", token),
    "step": ("step", count),
    "finishReason": ("finish_reason", token),
    "trigger": ("trigger", token),
    "subagentId": ("subagent_id", text),
    "subagentName": ("agent_name", name),
    "parentToolCallId": ("parent_tool_call_id", text),
    "runInBackground": ("background", flag),
    "taskId": ("task_id", token),
    "busy": ("busy", flag),
    "main_turn_active": ("main_turn_active", flag),
    "pending_interaction": ("pending_interaction", token),
    "last_turn_reason": ("last_turn_reason", token),
}


def facts(kind: str, frame: JSONObject, payload: JSONObject) -> JSONObject:
    """The facts of one frame; a fact is absent when its field is absent or of the wrong kind."""
    found: JSONObject = {"event": kind}
    _keep(found, "seq", count(frame.get("seq")))
    _keep(found, "epoch", token(frame.get("epoch")))
    for field, (fact, read) in _READERS.items():
        # `name` is the tool's in a tool call and the error's in an error frame.
        if field in payload and (field != "name" or kind == "tool.call.started"):
            _keep(found, fact, read(payload[field]))
    origin = table(payload.get("origin"))
    _keep(found, "origin_kind", token(origin.get("kind")))
    _keep(found, "origin_name", token(origin.get("name")))
    info = table(payload.get("info"))
    _keep(found, "task_id", token(info.get("taskId")))
    _keep(found, "task_kind", token(info.get("kind")))
    _keep(found, "task_status", token(info.get("status")))
    if table(payload.get("args")).get("run_in_background") is True:
        found["background"] = True
    _usage(found, table(payload.get("usage")))
    if kind == "event.question.requested":
        found["questions"] = _questions(payload)
    elif kind == "event.question.answered":
        found["answers"] = _answers(payload)
    return found


def _keep(found: JSONObject, fact: str, value: JSONValue) -> None:
    if value is not None:
        found[fact] = value


def _usage(found: JSONObject, usage: JSONObject) -> None:
    read = [count(usage.get(key)) for key in ("inputOther", "inputCacheRead", "inputCacheCreation")]
    if any(value is not None for value in read):
        found["input_tokens"] = sum(value or 0 for value in read)
    _keep(found, "output_tokens", count(usage.get("output")))


def _questions(payload: JSONObject) -> list[JSONValue]:
    asked: list[JSONValue] = []
    for index, question in enumerate(items(payload.get("questions"))[:_MAX_ASKED]):
        options: list[JSONValue] = [
            [text(option.get("id")) or f"opt_{index}_{place}", digest(option.get("label"))]
            for place, option in enumerate(items(question.get("options"))[:_MAX_ASKED])
        ]
        asked.append([question_key(index, question), digest(question.get("question")), options])
    return asked


def _answers(payload: JSONObject) -> list[JSONValue]:
    answers: list[JSONValue] = []
    for question, value in list(table(payload.get("answers")).items())[:_MAX_ASKED]:
        labels: list[JSONValue] = value[:_MAX_ASKED] if isinstance(value, list) else [value]
        if isinstance(value, str) and ", " in value:
            labels += value.split(", ", _MAX_ASKED)
        digests: list[JSONValue] = [digest(label) for label in labels if isinstance(label, str)]
        if digests:
            answers.append([digest(question), digests])
    return answers
