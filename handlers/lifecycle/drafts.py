"""Drafts of the reducer's own making, and the form in which a draft waits in a state."""

from __future__ import annotations

from typing import Any

import msgspec

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.lifecycle.bounds import KEPT
from handlers.lifecycle.entries import Kept
from handlers.mapping.moments import Draft

_CLIPS = (96, 24, 4)  # characters left of a text that does not fit


def keep(draft: Draft) -> Kept:
    """`draft` in a form that can be stored; data above `KEPT` bytes is cut and marked `truncated`."""
    data, subject = draft.data, draft.subject
    try:
        size = len(_ENCODER.encode((data, subject)))
    except UnicodeEncodeError:
        data, subject = _clean(data), None if subject is None else _clean(subject)
        size = len(_ENCODER.encode((data, subject)))
    whole = data
    for clip in _CLIPS:
        if size <= KEPT:
            break
        data = {name: _clip(value, clip) for name, value in list(whole.items())[:8]}
        data["truncated"] = True
        subject = None if subject is None else subject[:clip]
        size = len(_ENCODER.encode((data, subject)))
    return Kept(draft.type, data, subject, draft.capture.value, draft.severity.value)


def _clip(value: JSONValue, size: int, depth: int = 0) -> JSONValue:
    if isinstance(value, str):
        return value[:size]
    if isinstance(value, list):
        return [] if depth > 1 else [_clip(item, size, depth + 1) for item in value[:4]]
    if isinstance(value, dict):
        return {} if depth > 1 else {k: _clip(v, size, depth + 1) for k, v in list(value.items())[:4]}
    return value


def _clean(value: Any) -> Any:
    """The same with every lone surrogate replaced, which UTF-8 cannot carry."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value


def made(event_type: str, *, bare: bool, **data: JSONValue) -> Draft:
    """A draft of the reducer's own: ids and machine words, or nothing at capture `none`."""
    return Draft(event_type, {}, capture=Capture.NONE) if bare else Draft(event_type, data)


def with_data(draft: Draft, **more: JSONValue) -> Draft:
    """`draft` with more data, which is `metadata`: nothing is added at capture `none`."""
    if draft.capture is Capture.NONE:
        return draft
    data: JSONObject = {**draft.data, **more}
    return Draft(draft.type, data, draft.subject, draft.capture, draft.severity)


def with_subject(draft: Draft, subject: str) -> Draft:
    """`draft` about another subject."""
    return Draft(draft.type, draft.data, subject, draft.capture, draft.severity)


_ENCODER = msgspec.json.Encoder()
