"""The session itself: it may begin more than once (a resume), and it ends once, remembered for long.

AEP-0002 §2.5: events after a terminal stay legal, a second end does not. So a resume after an end is
told as another `session.started` with the vendor's trigger, its runs open and close as ever, and the
end of a resumed session drains what is open and degrades to the fallback.
"""

from __future__ import annotations

from handlers.lifecycle import attention, crew, doubts, gates, instructions, runs, turns
from handlers.lifecycle.drafts import keep, with_data
from handlers.lifecycle.entries import Ending
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

ENDING_MS = 1_000


def started(w: Writer, draft: Draft, *, resumed: bool) -> None:
    """The session began, or was loaded again by another process of the vendor's."""
    state = w.state
    finish(w)
    crew.dismiss(state)
    doubts.drop(state)
    state.turn = None
    event_id = w.remark(draft)
    if state.started is None:
        state.started = event_id
        state.started_at = None if resumed else w.at


def ended(w: Writer, draft: Draft, fallback: Draft) -> None:
    """The session ends, at once or when the late end of its open run has had its chance."""
    state = w.state
    if state.ending is not None:
        w.remark(fallback)
        return
    state.ending = Ending(w.at, w.at + ENDING_MS, keep(fallback if state.ended else draft))
    run = state.run
    if run is None or run.held or run.interrupt is not None:
        finish(w)


def finish(w: Writer) -> None:
    """Drain everything and end the session, if it is ending; a resumed one has told its end before."""
    state = w.state
    ending, state.ending = state.ending, None
    if ending is None:
        return
    turns.settle(w)
    runs.settle(w)
    gates.close_all(w)
    attention.close(w)
    instructions.drop_all(w)
    state.given = []
    crew.dismiss(state)
    draft = ending.draft.draft()
    if state.started_at is not None and not state.ended:
        draft = with_data(draft, duration_ms=max(0, ending.at - state.started_at), runs=state.runs)
    w.emit(draft, cause=None if state.ended else state.started, at=ending.at)
    state.ended = True
    state.over = True


def due(state: SessionState) -> int | None:
    """Unix ms at which an ending session ends."""
    return None if state.ending is None else state.ending.due


def tick(w: Writer) -> None:
    """End the session when its time has come."""
    ending = w.state.ending
    if ending is not None and (ending.due <= w.at or w.state.run is None):
        finish(w)
