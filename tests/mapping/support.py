"""Checks that hold for every draft of every channel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONValue
from handlers.aep.redaction import Redactor
from handlers.aep.validation import check_event
from handlers.mapping.fields import severity
from handlers.mapping.moments import Draft, Moment
from tests.mapping.payloads import SECRET

LEVELS = tuple(Capture)


def posture(level: Capture, **more: Any) -> Posture:
    """Every event, attention too, at one level."""
    return Posture(capture=level, attention=level, redactor=Redactor(secrets=(SECRET,)), **more)


def drafts_of(moment: Moment) -> Iterator[Draft]:
    """Whatever of a moment may become an event."""
    yield from moment.drafts
    yield moment.fallback
    if moment.partial is not None:
        yield named(moment.partial)


def named(partial: Draft) -> Draft:
    """A partial as the reducer completes it."""
    tool = partial.data.get("tool")
    data = {**partial.data, "tool": {**tool, "name": "Bash"}} if isinstance(tool, dict) else partial.data
    return Draft(partial.type, data, partial.subject or "Bash", partial.capture, partial.severity)


def as_event(draft: Draft) -> dict[str, Any]:
    """The draft with an identity, as it goes out: without data at capture `none`."""
    event: dict[str, Any] = {
        "aep": "0.1",
        "id": "01KBXM4P7M0000000000000000",
        "type": draft.type,
        "time": "2026-11-30T14:56:43.506Z",
        "source": "aep://host/agent/kimi-code/session/session_1",
        "agent": "kimi-code",
        "session": "session_1",
        "seq": 1,
        "severity": draft.severity.value,
        "capture": draft.capture.value,
    }
    if draft.subject is not None:
        event["subject"] = draft.subject
    if draft.capture is not Capture.NONE:
        event["data"] = draft.data
    return event


def assert_sound(moment: Moment, level: Capture) -> None:
    """Valid events of the level asked for, urgent as the design says, that JSON can carry."""
    assert moment.session
    for draft in drafts_of(moment):
        assert check_event(as_event(draft)) == []
        assert draft.capture is level
        assert draft.severity is severity(draft.type)
        assert level is not Capture.NONE or draft.data == {}
        assert "turn_id" not in draft.data
    json.dumps(said(moment))


def said(moment: Moment) -> JSONValue:
    """Everything a moment holds, drafts and facts."""
    return [
        *([draft.type, draft.subject, draft.data] for draft in drafts_of(moment)),
        [moment.name, moment.session, dict(moment.facts)],
    ]
