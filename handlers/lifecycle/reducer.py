"""The reducer: `(state, inputs) → (state', events, replies)`. No I/O, no clock, no randomness.

The same state and inputs give the same result, however the inputs are cut into batches; so what a
conflict threw away can be reduced again, and a test can play any story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from handlers.aep.levels import JSONObject
from handlers.aep.ulid import Mint
from handlers.lifecycle import clock, hooks
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Emitted, Writer
from handlers.mapping.moments import Moment

__all__ = ["UNKNOWN", "Emitted", "Input", "Reduction", "Tick", "reduce"]

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time."""


@dataclass(frozen=True, slots=True)
class Input:
    """Something that reached us at Unix milliseconds `at_ms`, and the mint of the ids it will need."""

    moment: Moment | Tick
    at_ms: int
    mint: Mint


@dataclass(frozen=True, slots=True)
class Reduction:
    """The state after the inputs, the events in order, and one reply (a hook's answer) per input."""

    state: SessionState
    events: tuple[Emitted, ...]
    replies: tuple[JSONObject, ...]


def reduce(state: SessionState | None, inputs: Sequence[Input], now_ms: int, *, top: int = 0) -> Reduction:
    """Reduce `inputs` in order. Nothing given is changed.

    `state` is None where none is stored; `now_ms` (Unix milliseconds) is the clock of positions;
    `top` is the highest position of the replay stream, 0 where there is none.
    """
    current = SessionState() if state is None else state.copy()
    current.last_seq = max(current.last_seq, top)
    w = Writer(current, now_ms)
    replies: list[JSONObject] = []
    for given in inputs:
        w.mint = given.mint.copy()
        clock.advance(w, given.at_ms)
        moment = given.moment
        if isinstance(moment, Moment):
            if moment.session == UNKNOWN:
                _tell(w, moment)
            else:
                _FRONTS.get(moment.channel, _tell)(w, moment)
        current.bound()
        replies.append({})
    current.due_ms = clock.due(current)
    return Reduction(current, tuple(w.events), tuple(replies))


def _tell(w: Writer, moment: Moment) -> None:
    """Events of nobody's session, or of a channel without a front-end: told, claiming no lifecycle."""
    for draft in moment.drafts or (moment.fallback,):
        claims = draft.type.startswith(("run.", "attention.")) or draft.type == "session.ended"
        w.remark(moment.fallback if claims else draft)


_FRONTS: Mapping[str, Callable[[Writer, Moment], None]] = {"hook": hooks.step}
