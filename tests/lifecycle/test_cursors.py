"""Numbered streams: what is sent again is taken once, by whichever path it comes."""

from __future__ import annotations

from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import CURSORS
from handlers.lifecycle.cursors import Placed, latest
from handlers.lifecycle.reducer import Input, Reduction, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from tests.lifecycle.support import START_MS, Story, payload


def prompt() -> Moment:
    return map_hook(payload("UserPromptSubmit"), Story().posture)


def take(state: SessionState | None, *placed: Placed) -> Reduction:
    inputs = [
        Input(one, START_MS + i, Mint(START_MS, i.to_bytes(8, "big") + b"\0\0"))
        for i, one in enumerate(placed)
    ]
    reduction = reduce(state, inputs, START_MS)
    assert SessionState.decode(reduction.state.encode()) == reduction.state
    return reduction


def test_a_moment_is_taken_once() -> None:
    first = take(None, Placed(prompt(), "web.ep_1", 4))
    again = take(first.state, Placed(prompt(), "web.ep_1", 4), Placed(prompt(), "web.ep_1", 3))
    assert len(first.events) == 1
    assert not again.events
    assert again.replies == ({"repeat": True}, {"repeat": True})
    assert latest(again.state, "web") == ("ep_1", 4)


def test_a_batch_that_overlaps_tells_what_is_new() -> None:
    first = take(None, *(Placed(prompt(), "acp.c1", n) for n in (1, 2)))
    second = take(first.state, *(Placed(prompt(), "acp.c1", n) for n in (1, 2, 3)))
    assert [reply.get("repeat") for reply in second.replies] == [True, True, None]


def test_a_late_repeat_of_an_older_epoch_is_still_a_repeat() -> None:
    first = take(None, Placed(prompt(), "web.ep_1", 9), Placed(prompt(), "web.ep_2", 1))
    again = take(first.state, Placed(prompt(), "web.ep_1", 9))
    assert not again.events


def test_a_tick_only_moves_the_cursor() -> None:
    moved = take(None, Placed(Tick(), "web.ep_1", 7))
    assert not moved.events
    assert latest(moved.state, "web") == ("ep_1", 7)
    assert latest(moved.state, "acp") is None


def test_the_streams_remembered_are_bounded() -> None:
    state: SessionState | None = None
    for number in range(3 * CURSORS):
        state = take(state, Placed(Tick(), f"acp.{number}", 1)).state
    assert state is not None
    assert len(state.cursors) == CURSORS
    assert latest(state, "acp") == (str(3 * CURSORS - 1), 1)
