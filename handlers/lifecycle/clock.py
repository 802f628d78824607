"""Time as an input: when a state wants a tick, and what a tick does.

Nothing waits in a handler. What is decided by the passing of time is decided at the moment it was
due, whoever brings the news: a tick of the sweeper or the session's next event.
"""

from __future__ import annotations

from handlers.lifecycle import attention, gates, instructions, orders, runs, session
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer

PARTS = (gates, attention, instructions, orders, runs, session)
"""Who waits for something; `SessionState.waits` says at a glance whether anybody does."""


def due(state: SessionState) -> int | None:
    """Unix ms at which the state wants a tick; None when it waits for nothing."""
    if not state.waits:
        return None
    earliest = None
    for part in PARTS:
        at = part.due(state)
        if at is not None and (earliest is None or at < earliest):
            earliest = at
    return earliest


def advance(w: Writer, to: int) -> None:
    """Let time pass up to Unix ms `to`, one due moment after the other."""
    while (at := due(w.state)) is not None and at <= to:
        w.at = at
        for part in PARTS:
            part.tick(w)
    w.at = to
