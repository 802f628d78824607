"""What an event may say at which capture level (AEP-0001 §8.2, AEP-0002 §5.1, AEP-0003 §9.1-9.2).

Two parties gate. An emitter (`gate`) knows what a field is made of. A hop (`downlevel`) sees only the
event: it drops what it cannot classify, and never turns `full` into `redacted`, because that word is a
claim about text the hop did not check.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.redaction import Redactor
from handlers.aep.registry import ADDED, payload_of
from handlers.aep.shapes import Shape

_ANSWERED = frozenset({"attention.answered", "control.attention.respond"})


@dataclass(frozen=True, slots=True)
class Posture:
    """What the operator allows to leave this machine.

    `capture` is the ceiling of every event, `attention` that of the `attention` category, `redactor`
    what free text passes below `full`, `acp_deltas` whether message chunks of the ACP channel are told.
    """

    capture: Capture = Capture.METADATA
    attention: Capture = Capture.REDACTED
    redactor: Redactor = field(default_factory=Redactor)
    acp_deltas: bool = False

    def level(self, event_type: str) -> Capture:
        """The ceiling of one type (AEP-0003 §9.1: `attention` has its own, so prompts stay readable)."""
        return self.attention if event_type.startswith("attention.") else self.capture


def gate(
    event_type: str,
    data: JSONObject,
    level: Capture,
    *,
    agent: str = "kimi-code",
    subject: str | None = None,
) -> JSONObject:
    """`data` without what needs more than `level`; nothing at all at `none`.

    Below `redacted` the prompt of an attention request is made up from `agent`, its kind and `subject`,
    labels become ids, and of a form's answers only numbers and booleans stay (AEP-0002 §5.3). Members
    that no schema knows count as metadata (AEP-0002 §5.1 rule 4); who puts content there must gate it.
    """
    if level is Capture.NONE:
        return {}
    shape = payload_of(event_type)
    kept = _prune(data, shape, level) if shape else dict(data)
    return kept if level.allows(Capture.REDACTED) else _structural(event_type, kept, agent, subject)


def gate_values(fields: JSONValue, values: JSONObject, level: Capture) -> JSONObject:
    """A form's answers as its field specs allow at `level` (AEP-0002 §5.3, `answer.values`).

    Numbers, booleans and ids of offered choices are structural. Text the user wrote needs `redacted`. An
    answer to no field is dropped.
    """
    specs = {
        spec["id"]: spec
        for spec in (fields if isinstance(fields, list) else [])
        if isinstance(spec, dict) and isinstance(spec.get("id"), str)
    }
    free_text = level.allows(Capture.REDACTED)
    return {
        name: value
        for name, value in values.items()
        if name in specs and (free_text or _is_structural(specs[name], value))
    }


def downlevel(event: JSONObject, ceiling: Capture) -> JSONObject:
    """The event as a mechanical hop may pass it on under `ceiling` (AEP-0001 §8.2, AEP-0002 §5.1 rule 3).

    An event already at or below the ceiling is returned as it is. `full` under `redacted` becomes
    `metadata`. A type without a schema loses its data whole.
    """
    declared = declared_capture(event)
    if ceiling.allows(declared):
        return event
    target = Capture.METADATA if ceiling is Capture.REDACTED else ceiling
    passed = {**event, "capture": target.value}
    event_type, data = event.get("type"), event.get("data")
    shape = payload_of(event_type) if isinstance(event_type, str) else None
    if target is Capture.NONE or shape is None or not isinstance(data, dict):
        passed.pop("data", None)
        return passed
    agent, subject = event.get("agent"), event.get("subject")
    passed["data"] = _structural(
        str(event_type),
        _prune(_without_added(str(event_type), data, target), shape, target),
        agent if isinstance(agent, str) else "agent",
        subject if isinstance(subject, str) else None,
    )
    return passed


def declared_capture(event: JSONObject) -> Capture:
    """The level an event declares; `metadata` where it declares none (AEP-0001 §5.1), `full` where the
    word is unknown, so that nothing passes a ceiling by a misspelling."""
    word = event.get("capture", Capture.METADATA.value)
    return Capture(word) if isinstance(word, str) and word in _LEVELS else Capture.FULL


def synthesized_prompt(agent: str, kind: JSONValue, subject: str | None) -> str:
    """What an attention request says without content (AEP-0003 §9.2)."""
    what = kind if isinstance(kind, str) and kind else "attention"
    return f"{agent} requests {what}: {subject}" if subject else f"{agent} requests {what}"


_LEVELS = frozenset(level.value for level in Capture)


def _without_added(event_type: str, data: JSONObject, level: Capture) -> JSONObject:
    added = ADDED.get(event_type)
    if added is None:
        return data
    return {name: value for name, value in data.items() if name not in added or level.allows(added[name])}


def _prune(value: JSONObject, shape: Shape, level: Capture) -> JSONObject:
    kept: JSONObject = {}
    for name, member in value.items():
        known = shape.fields.get(name)
        if known is None:
            kept[name] = member
        elif level.allows(known.level):
            kept[name] = _prune_inside(member, known, level)
    return kept


def _prune_inside(value: JSONValue, shape: Shape, level: Capture) -> JSONValue:
    if isinstance(value, dict):
        return _prune(value, shape, level) if shape.fields else value
    if isinstance(value, list) and shape.items is not None:
        return [_prune_inside(item, shape.items, level) for item in value]
    return value


def _structural(event_type: str, data: JSONObject, agent: str, subject: str | None) -> JSONObject:
    """`data` with the fields that AEP-0002 stars in their structural form."""
    if event_type == "attention.requested":
        data = dict(data)
        if "prompt" in data:
            data["prompt"] = synthesized_prompt(agent, data.get("kind"), subject)
        for name in ("options", "fields"):
            if name in data:
                data[name] = _unlabelled(data[name])
    elif event_type in _ANSWERED:
        answer = data.get("answer")
        if isinstance(answer, dict) and "values" in answer:
            values = answer["values"]
            kept: JSONObject = (
                {name: value for name, value in values.items() if isinstance(value, int | float)}
                if isinstance(values, dict)
                else {}
            )
            data = {**data, "answer": {**answer, "values": kept}}
    return data


def _unlabelled(listed: JSONValue) -> JSONValue:
    """Options, fields or choices with their ids (or their number) for labels."""
    if not isinstance(listed, list):
        return []
    plain: list[JSONValue] = []
    for number, item in enumerate(listed, 1):
        if not isinstance(item, dict):
            continue
        identity = item.get("id")
        plain_item = {**item, "label": identity if isinstance(identity, str) else str(number)}
        if "choices" in item:
            plain_item["choices"] = _unlabelled(item["choices"])
        plain.append(plain_item)
    return plain


def _is_structural(spec: JSONObject, value: JSONValue) -> bool:
    if spec.get("type") in ("number", "boolean"):
        return isinstance(value, int | float)
    if spec.get("type") != "select":
        return False
    choices = spec.get("choices")
    ids = [
        choice.get("id")
        for choice in (choices if isinstance(choices, list) else [])
        if isinstance(choice, dict)
    ]
    return all(isinstance(one, str) and one in ids for one in (value if isinstance(value, list) else [value]))
