"""Whether an event says no more than the capture level it declares (AEP-0001 §8.2 a, AEP-0002 §5.1, §5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from handlers.aep.capture import declared_capture, synthesized_prompt
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.registry import payload_of
from handlers.aep.shapes import Shape
from handlers.aep.validation import Problem

_RULE: Final = "AEP-0001 §8.2"
_STARRED: Final = "AEP-0002 §5.3"


def check_capture(event: JSONObject) -> list[Problem]:
    """What a valid event says above its declared level. Members that no schema knows are not judged."""
    data = event.get("data")
    event_type = event.get("type")
    if not isinstance(data, dict) or not isinstance(event_type, str):
        return []
    level = declared_capture(event)
    if level is Capture.NONE:
        return [Problem(_RULE, "data", "stands in an event of capture none")] if data else []
    problems: list[Problem] = []
    shape = payload_of(event_type)
    if shape is not None:
        problems += _above(data, shape, level, "data")
    if event_type == "attention.requested" and not level.allows(Capture.REDACTED):
        problems += _request(event, data)
    return problems


def _above(value: JSONValue, shape: Shape, level: Capture, path: str) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, member in value.items():
            known = shape.fields.get(name)
            if known is None:
                continue
            if level.allows(known.level):
                yield from _above(member, known, level, f"{path}.{name}")
            else:
                yield Problem(_RULE, f"{path}.{name}", f"needs capture {known.level}, not {level}")
    elif isinstance(value, list) and shape.items is not None:
        for index, item in enumerate(value):
            yield from _above(item, shape.items, level, f"{path}[{index}]")


def _request(event: JSONObject, data: JSONObject) -> Iterator[Problem]:
    agent, prompt = event.get("agent"), data.get("prompt")
    told = synthesized_prompt(agent if isinstance(agent, str) else "", data.get("kind"), None)
    about = f"{told}: {event.get('subject', '')}"
    # without a subject nothing says what the prompt may name
    structural = prompt in (told, about) or ("subject" not in event and str(prompt).startswith(about))
    if not structural:
        yield Problem("AEP-0003 §9.2", "data.prompt", "is not made of structure alone")
    for name in ("options", "fields"):
        yield from _labels(data.get(name), f"data.{name}")


def _labels(listed: JSONValue, path: str) -> Iterator[Problem]:
    if not isinstance(listed, list):
        return
    for number, item in enumerate(listed, 1):
        if not isinstance(item, dict):
            continue
        if item.get("label") not in (item.get("id"), str(number)):
            yield Problem(_STARRED, f"{path}[{number - 1}].label", "is neither an id nor a number")
        yield from _labels(item.get("choices"), f"{path}[{number - 1}].choices")
