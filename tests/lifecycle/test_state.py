"""The stored form of the state."""

from __future__ import annotations

import pytest

from handlers.aep.levels import Capture
from handlers.errors import InvalidState
from handlers.lifecycle.bounds import KEPT
from handlers.lifecycle.drafts import keep
from handlers.lifecycle.names import key, turn_of
from handlers.lifecycle.state import SessionState
from handlers.mapping.moments import Draft
from tests.lifecycle.support import Story


def test_a_state_round_trips() -> None:
    story = Story()
    story.hook("SessionStart", source="startup")
    story.prompt(0)
    story.pre("a", "Agent", background=True)
    story.ask("a")
    story.fail("a")
    story.hook("Stop")
    state = story.state
    assert state is not None
    assert SessionState.decode(state.encode()) == state
    assert state.copy() == state
    assert len(state.encode()) < 2_000


@pytest.mark.parametrize("stored", [b"", b"{}", b"[]x", b"[9]", b'["1"]', b"\xff", b'[1,"seq"]'])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(InvalidState):
        SessionState.decode(stored)


def test_long_and_strange_ids_become_short_keys() -> None:
    assert key("call_1") == "call_1"
    assert key("") is key(None) is key(7) is None
    strange = [key(text) for text in ("a\nb", "x" * 10_000, "ü", "\ud800", "x" * 65)]
    assert all(k is not None and len(k) == 33 and k.isascii() for k in strange)
    assert len(set(strange)) == len(strange)


def test_turn_ids_are_numbers_or_words() -> None:
    assert turn_of(7) == 7
    assert turn_of("turn_3") == "turn_3"
    assert turn_of(True) is turn_of(None) is turn_of([]) is None
    assert isinstance(turn_of(2**80), str)


def test_a_kept_draft_is_whole_when_it_is_small() -> None:
    draft = Draft("run.failed", {"reason": "error"}, capture=Capture.REDACTED)
    assert keep(draft).draft() == draft


@pytest.mark.parametrize("text", ["x" * 100_000, "\0" * 9_000, "ü" * 9_000, "\ud800" * 9_000])
def test_a_kept_draft_is_cut_and_says_so(text: str) -> None:
    draft = Draft("run.failed", {"reason": text, "error": {"type": "E", "message": text}}, text[:50])
    kept = keep(draft).draft()
    assert kept.data["truncated"] is True
    assert set(kept.data) == {"reason", "error", "truncated"}
    assert len(str(kept.data)) < 2 * KEPT
