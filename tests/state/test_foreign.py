"""Events that others post: kept once, sorted by their own positions, bounded exactly."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state.connection import Client
from state.foreign import Foreign, ForeignPage, Position
from state.keys import Keys, SessionKey
from state.sessions import Bounds

KEY = SessionKey("host", "session-1")
SOURCE = "aep://other/agent/x/session/session-1"
NOW = 1_000_000


@pytest.fixture
def foreign(client: Client, keys: Keys) -> Foreign:
    return Foreign(client, keys, Bounds(buffer=8))


async def post(foreign: Foreign, position: Position, event_id: str = "", now_ms: int = NOW) -> bool:
    name = event_id or f"{position}"
    return await foreign.admit(KEY, SOURCE, name, position, name.encode(), now_ms=now_ms)


async def test_nothing_posted_is_an_empty_page(foreign: Foreign) -> None:
    assert await foreign.read(KEY, SOURCE) == ForeignPage((), None, None)
    assert await foreign.sources(KEY) == []


async def test_replay_is_in_the_order_of_positions(foreign: Foreign) -> None:
    positions = [(0, 7), (0, 0), (1, 0), (0, 100), (2**53 - 1, 2**53 - 1), (0, 2**53 - 1)]
    for position in positions:
        assert await post(foreign, position)
    page = await foreign.read(KEY, SOURCE)
    assert [position for position, _ in page.entries] == sorted(positions)
    assert page.earliest == (0, 0)
    page = await foreign.read(KEY, SOURCE, (0, 7))
    assert [position for position, _ in page.entries] == sorted(positions)[2:]
    assert not page.exhausted((0, 7))


async def test_an_event_is_kept_once(foreign: Foreign) -> None:
    assert await post(foreign, (0, 1), "a")
    assert not await post(foreign, (0, 1), "a")
    assert not await post(foreign, (0, 9), "a")
    assert await post(foreign, (0, 1), "b")
    assert [body for _, body in (await foreign.read(KEY, SOURCE)).entries] == [b"a", b"b"] or [
        body for _, body in (await foreign.read(KEY, SOURCE)).entries
    ] == [b"b", b"a"]
    assert await foreign.admit(KEY, "aep://third", "a", (0, 1), b"other", now_ms=NOW + 1)
    assert await foreign.sources(KEY) == ["aep://third", SOURCE]


async def test_bodies_are_kept_byte_for_byte(foreign: Foreign) -> None:
    body = bytes(range(256)) + b'{"data": []}'
    await foreign.admit(KEY, SOURCE, "a", (0, 0), body, now_ms=NOW)
    assert (await foreign.read(KEY, SOURCE)).entries == (((0, 0), body),)


async def test_the_buffer_is_exact_and_says_what_is_gone(foreign: Foreign) -> None:
    for seq in range(20):
        await post(foreign, (0, seq))
    page = await foreign.read(KEY, SOURCE, (0, 3))
    assert [seq for (_, seq), _ in page.entries] == list(range(12, 20))
    assert page.trimmed_to == (0, 11)
    assert page.exhausted((0, 3))
    assert not page.exhausted((0, 11))
    # Filled in behind the buffer: it travelled, and is gone at once.
    await post(foreign, (0, 5), "late")
    page = await foreign.read(KEY, SOURCE)
    assert len(page.entries) == 8
    assert page.trimmed_to == (0, 11)


async def test_a_page_is_not_cut_between_two_events_of_one_position(foreign: Foreign) -> None:
    for number in range(3):
        await post(foreign, (0, 1), f"a{number}")
    await post(foreign, (0, 2), "b")
    page = await foreign.read(KEY, SOURCE, limit=2)
    assert [position for position, _ in page.entries] == [(0, 1)] * 3
    page = await foreign.read(KEY, SOURCE, (0, 1), limit=2)
    assert [body for _, body in page.entries] == [b"b"]


async def test_sessions_of_others_are_listed(client: Client) -> None:
    foreign = Foreign(client, Keys("aep", 1))
    found = [SessionKey("host", f"id {number}") for number in range(3)]
    for number, key in enumerate(found):
        await foreign.admit(key, SOURCE, "a", (0, 0), b"", now_ms=NOW + number)
    assert await foreign.sessions(0) == found[::-1]
    assert await foreign.sessions(0, since_ms=NOW + 1, limit=1, offset=1) == [found[1]]


@pytest.mark.parametrize("position", [(-1, 0), (0, -1), (2**53, 0), (0, 2**53)])
async def test_a_position_out_of_range_is_refused(foreign: Foreign, position: Position) -> None:
    with pytest.raises(ValueError, match="position"):
        await post(foreign, position)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
async def test_any_order_with_repeats_gives_the_highest_in_order(
    foreign: Foreign, data: st.DataObject
) -> None:
    name = f"aep://{uuid.uuid4()}"
    small = st.tuples(st.integers(0, 1), st.integers(0, 15))
    posted = data.draw(st.lists(small, min_size=1, max_size=40))
    for position in posted:
        await foreign.admit(KEY, name, f"{position}", position, b"%d.%d" % position, now_ms=NOW)
    page = await foreign.read(KEY, name)
    held = [position for position, _ in page.entries]
    # What was trimmed and posted again is still known by its id, so the highest eight stay.
    assert held == sorted(set(posted))[-8:]
    gone = sorted(set(posted))[:-8]
    assert page.trimmed_to == (gone[-1] if gone else None)
    for after in data.draw(st.lists(small, max_size=5)):
        page = await foreign.read(KEY, name, after)
        assert [position for position, _ in page.entries] == [item for item in held if item > after]
        assert page.exhausted(after) == any(item > after for item in gone)
