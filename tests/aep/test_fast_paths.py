"""The short ways that every event takes say the same as the long ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.registry import TYPES
from handlers.aep.shapes import Shape
from handlers.aep.ulid import Mint
from handlers.aep.validation import check_payload, is_valid

_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 2.0, "", "word", [], ["a"], [{}], {}, {"a": 1}, 10**20]
)


def payload(shape: Shape, depth: int = 0) -> st.SearchStrategy[Any]:
    """Mostly what the shape describes, sometimes anything."""
    fitting: st.SearchStrategy[Any]
    if shape.words:
        fitting = st.sampled_from(sorted(shape.words))
    elif shape.kind in ("object", "object|string") and depth < 4:
        members = {name: payload(member, depth + 1) for name, member in shape.fields.items()}
        required = {name: value for name, value in members.items() if shape.fields[name].required}
        fitting = st.fixed_dictionaries(
            required, optional={**{n: v for n, v in members.items() if n not in required}, "more": _ODD}
        )
    elif shape.kind == "array" and shape.items is not None and depth < 4:
        fitting = st.lists(payload(shape.items, depth + 1), max_size=2)
    elif shape.kind in ("integer", "number"):
        fitting = st.integers(0, 9)
    else:
        fitting = st.sampled_from(["text", True])
    return st.one_of(fitting, fitting, fitting, _ODD)


@given(st.data())
def test_valid_is_without_problems(data: st.DataObject) -> None:
    event_type = data.draw(st.sampled_from(sorted(name for name, spec in TYPES.items() if spec.payload)))
    shape = TYPES[event_type].payload
    assert shape is not None
    drawn = data.draw(payload(shape))
    if isinstance(drawn, dict):
        assert is_valid(event_type, drawn) == (not check_payload(event_type, drawn))


def test_a_copied_mint_gives_the_same_ids() -> None:
    mint = Mint(1_790_000_000_000, bytes(10))
    mint.next()
    twin = mint.copy()
    assert [mint.next(), mint.next()] == [twin.next(), twin.next()]
