"""Valid payloads of any registered type, made from its shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from handlers.aep.registry import payload_of
from handlers.aep.shapes import Shape

TEXT = st.text(max_size=8)


def values(shape: Shape) -> st.SearchStrategy[Any]:
    """Values of a shape, every optional member there or not."""
    if shape.words:
        return st.sampled_from(sorted(shape.words))
    match shape.kind:
        case "string":
            return TEXT
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(shape.minimum if shape.minimum is not None else -9, 10**9)
        case "number":
            low = shape.minimum if shape.minimum is not None else -9
            return st.integers(low, shape.maximum or 100) | st.floats(low, shape.maximum or 100)
        case "array":
            return st.lists(values(shape.items) if shape.items else TEXT, max_size=3)
        case "object|string":
            return TEXT | st.dictionaries(TEXT, TEXT, max_size=2)
        case "object":
            return members(shape)
        case "any":
            return TEXT


def members(shape: Shape) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the known members of a shape, and some unknown ones."""
    needed = {other for _, _, other in shape.needed_with}
    known = st.fixed_dictionaries(
        {name: values(field) for name, field in shape.fields.items() if field.required or name in needed},
        optional={
            name: values(field)
            for name, field in shape.fields.items()
            if not field.required and name not in needed
        },
    )
    if shape.fields:
        return known
    return st.dictionaries(TEXT, TEXT | st.integers(0, 9) | st.booleans(), max_size=3)


def payloads(event_type: str) -> st.SearchStrategy[dict[str, Any]]:
    """Valid payloads of a registered type."""
    shape = payload_of(event_type)
    return members(shape) if shape else st.dictionaries(TEXT, TEXT, max_size=2)
