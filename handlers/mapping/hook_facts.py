"""What the reducer may know of a hook payload: ids, machine words and flags, never content.

A fact is absent when its field is absent or of the wrong kind. `engine` is `v1` when the payload has
neither `is_steer` nor `client_type`: the sign of the older engine (agent-core), and only a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from handlers.aep.levels import JSONObject, JSONValue
from handlers.mapping.fields import count, flag, name, table, text, token


def _turn(value: JSONValue) -> int | str | None:
    number = count(value)
    return text(value) if number is None else number


_READERS: Mapping[str, tuple[str, Callable[[JSONValue], JSONValue]]] = {
    "tool_name": ("tool_name", name),
    "tool_call_id": ("tool_call_id", text),
    "turn_id": ("turn_id", _turn),
    "agent_id": ("agent_id", text),
    "id": ("request_id", text),
    "is_steer": ("is_steer", flag),
    "client_type": ("client_type", token),
    "origin_kind": ("origin_kind", token),
    "origin_name": ("origin_name", token),
    "decision": ("decision", token),
    "source": ("source", token),
    "reason": ("reason", token),
    "error_type": ("error_type", token),
    "agent_name": ("agent_name", name),
    "task_id": ("task_id", token),
    "kind": ("task_kind", token),
    "notification_type": ("notification_type", token),
    "source_kind": ("source_kind", token),
    "source_id": ("source_id", token),
    "prompt_id": ("prompt_id", token),
    "queue_length": ("queue_length", count),
    "trigger": ("trigger", token),
}
"""The vendor's field to the fact it is, and how it is read."""


def facts(event: str, payload: JSONObject) -> JSONObject:
    """The facts of one payload, whatever its event."""
    found: JSONObject = {"event": event, "has_is_steer": "is_steer" in payload}
    for field, given in payload.items():
        known = _READERS.get(field)
        if known is not None:
            fact, read = known
            value = read(given)
            if value is not None:
                found[fact] = value
    if table(payload.get("tool_input")).get("run_in_background") is True:
        found["background"] = True
    if "is_steer" not in payload and "client_type" not in payload:
        found["engine"] = "v1"
    return found
