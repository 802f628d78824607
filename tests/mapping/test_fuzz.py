"""Whatever stands in whatever field: no exception, no invalid event, nothing above the level."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.aep.levels import Capture
from handlers.mapping.acp import map_moment
from handlers.mapping.hooks import map_hook
from handlers.mapping.web import map_frame
from tests.mapping.payloads import FRAMES, HOOKS, MOMENTS
from tests.mapping.support import assert_sound, posture

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.sampled_from(["", " ", "\ud800", "\x00", "a.b", "true", "main", "approved", "text", "1e999"])
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "name", "label", "kind", ""]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
levels = st.sampled_from(list(Capture))


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """A payload with one to three of its fields, at any depth, replaced or gone."""
    copy: Any = _copied(whole)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = copy
        for _ in range(8):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del place[key]
            else:
                place[key] = draw(anything)
            break
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


@given(st.sampled_from(sorted(HOOKS)).flatmap(lambda name: damaged(HOOKS[name])), levels)
@settings(max_examples=400, deadline=None)
def test_damaged_hooks(payload: dict[str, Any], level: Capture) -> None:
    assert_sound(map_hook(payload, posture(level)), level)


@given(
    st.sampled_from(sorted(FRAMES)).flatmap(lambda name: damaged(FRAMES[name])),
    st.sampled_from(["companion", "primary"]),
    levels,
)
@settings(max_examples=400, deadline=None)
def test_damaged_frames(payload: dict[str, Any], mode: Any, level: Capture) -> None:
    moment = map_frame(payload, mode, posture(level))
    if moment is not None:
        assert_sound(moment, level)


@given(
    st.sampled_from(sorted(MOMENTS)).flatmap(
        lambda name: st.tuples(
            st.just(MOMENTS[name][0]), st.just(MOMENTS[name][1]), damaged(MOMENTS[name][2]) | anything
        )
    ),
    anything,
    levels,
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_damaged_moments(moment: tuple[Any, str, Any], asked: Any, level: Capture, deltas: bool) -> None:
    kind, method, body = moment
    assert_sound(map_moment(kind, method, body, posture(level, acp_deltas=deltas), asked=asked), level)


@given(st.text(st.characters(exclude_categories=())), anything, levels)
@settings(max_examples=200, deadline=None)
def test_any_name(name: str, value: Any, level: Capture) -> None:
    at = posture(level)
    assert_sound(map_hook({"hook_event_name": name, "x": value}, at), level)
    assert_sound(map_moment("request", name, value, at), level)
    assert_sound(map_moment("error", name, value, at), level)
    frame = map_frame({"type": name, "payload": value}, "primary", at)
    if frame is not None:
        assert_sound(frame, level)
