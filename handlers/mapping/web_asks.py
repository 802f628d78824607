"""Approvals and questions of the `kimi web` channel, in primary mode.

Every ask sheds its means of answering: no `options`, no `respond_via` (a channel that only reads claims
no way to answer, AEP-0008). The subject is the vendor's approval or question id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.mapping.fields import Shape, name, table, text, token
from handlers.mapping.moments import Draft, Moment

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

_OFFERED = (("approved", "Approve"), ("rejected", "Reject"))
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def approval_requested(p: JSONObject, posture: Posture) -> Draft | None:
    subject = text(p.get("approval_id"))
    if subject is None:
        return None
    shape = Shape("attention.requested", posture)
    prompt = shape.prose(text(p.get("action")))
    if prompt is None:
        prompt = f"kimi-code requests permission: {name(p.get('tool_name')) or name(subject)}"
    return shape.put(kind="permission", prompt=prompt).draft(subject)


def offered(moment: Moment) -> Moment:
    """The same approval with a way to answer it, for a channel that can carry the answer to the vendor.

    Unchanged where it is no approval, or where its id could not be named to the vendor again.
    """
    draft, request = moment.drafts[0] if moment.drafts else moment.fallback, moment.facts.get("request_id")
    if draft.type != "attention.requested" or draft.data.get("kind") != "permission":
        return moment
    if not isinstance(request, str) or not _PLAIN.fullmatch(request):
        return moment
    worded = draft.capture.allows(Capture.REDACTED)
    options: list[JSONValue] = [
        {"id": option, "label": label if worded else option} for option, label in _OFFERED
    ]
    data: JSONObject = {**draft.data, "options": options, "respond_via": ["control", "oob"]}
    told = Draft(draft.type, data, draft.subject, draft.capture, draft.severity)
    return replace(moment, drafts=(told,), facts={**moment.facts, "answerable": True})


def approval_resolved(p: JSONObject, posture: Posture) -> Draft | None:
    """A decision that is absent (the turn ended first) or `cancelled` answers nothing."""
    subject = text(p.get("approval_id"))
    decision = p.get("decision")
    if subject is None:
        return None
    if decision is None or decision == "cancelled":
        return _dismissed(subject, posture)
    if decision not in ("approved", "rejected"):
        return None
    shape = Shape("attention.answered", posture)
    answer: JSONObject = {"option": decision}
    feedback = shape.prose(text(p.get("feedback")))
    if feedback is not None:
        answer["text"] = feedback
    return shape.put(answer=answer, via="oob").label(text(p.get("selected_label"))).draft(subject)


def question_requested(p: JSONObject, posture: Posture) -> Draft | None:
    subject = text(p.get("question_id"))
    if subject is None:
        return None
    shape = Shape("attention.requested", posture)
    questions = items(p.get("questions"))
    texts = [asked for q in questions if (asked := text(q.get("question"))) is not None]
    prompt = shape.prose("\n".join(texts) or None)
    if prompt is None:
        prompt = f"kimi-code requests form: {name(subject)}"
    fields: list[JSONValue] = [_field(shape, i, q) for i, q in enumerate(questions)]
    return shape.put(kind="form", prompt=prompt, fields=fields).draft(subject)


def _field(shape: Shape, index: int, question: JSONObject) -> JSONObject:
    """One `field_spec` (AEP-0002 §5.2); below `redacted` a label is the item's 1-based place."""
    choices: list[JSONValue] = [
        {
            "id": text(option.get("id")) or f"opt_{index}_{place}",
            "label": shape.prose(text(option.get("label"))) or str(place + 1),
        }
        for place, option in enumerate(items(question.get("options")))
    ]
    field: JSONObject = {
        "id": question_key(index, question),
        "type": "select",
        "label": shape.prose(text(question.get("question"))) or str(index + 1),
        "choices": choices,
    }
    if question.get("multi_select") is True:
        field["multi"] = True
    if question.get("allow_other") is True:
        field["other"] = True
    return field


def question_answered(p: JSONObject, posture: Posture) -> Draft | None:
    """The answers as the wire has them: by id in the record, question text → label in the living vendor.

    Ids are structure and ride at metadata; anything else is text, and rides at redacted+. The reducer
    turns text back into ids where it saw the request (the digests in the facts).
    """
    subject = text(p.get("question_id"))
    if subject is None:
        return None
    answers = table(p.get("answers"))
    if answers.get("cancelled") is True:
        # Not an answer: the turn ended first, and the vendor puts its reason in the answers' place.
        return _dismissed(subject, posture)
    shape = Shape("attention.answered", posture)
    values = shape.structure(answers) if shape.level.allows(Capture.REDACTED) else _ids_only(answers)
    answer: JSONObject = {"values": values} if values else {}
    return shape.put(answer=answer, via="oob").draft(subject)


def _ids_only(answers: JSONObject) -> JSONObject:
    return {key: kept for key, value in answers.items() if token(key) and (kept := _by_id(value))}


def _by_id(value: JSONValue) -> JSONObject | None:
    """A choice by its id; None for whatever may be words."""
    if not isinstance(value, dict):
        return None
    chosen: JSONObject = {}
    option = token(value.get("option_id"))
    if option is not None:
        chosen["option_id"] = option
    several = value.get("option_ids")
    if isinstance(several, list) and several and all(token(one) for one in several):
        chosen["option_ids"] = several
    kind = token(value.get("kind"))
    return {"kind": kind, **chosen} if chosen and kind is not None else chosen or None


def question_dismissed(p: JSONObject, posture: Posture) -> Draft | None:
    subject = text(p.get("question_id"))
    return None if subject is None else _dismissed(subject, posture)


def _dismissed(subject: str, posture: Posture) -> Draft:
    return Shape("attention.resolved", posture).put(resolution="dismissed").draft(subject)


def items(value: JSONValue) -> list[JSONObject]:
    """The objects of an array."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def question_key(index: int, question: JSONObject) -> str:
    """The vendor's id of a question, or its place in the vendor's own scheme."""
    return text(question.get("id")) or f"q_{index}"
