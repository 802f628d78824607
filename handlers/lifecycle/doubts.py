"""Ends that nothing has decided yet: which they are, until when, and which of them is the best guess.

A held end is not told before it is decided. A doubted one was told as a subagent's, at the time when that
was the likelier of two, and is still the main agent's if the run turns out to be over without another.
"""

from __future__ import annotations

from handlers.lifecycle import crew
from handlers.lifecycle.bounds import STRAYS
from handlers.lifecycle.crew import Surplus
from handlers.lifecycle.entries import Held
from handlers.lifecycle.state import SessionState

HOLD_MS = 2_000  # engines whose SubagentStop follows a subagent's Stop within milliseconds
HOLD_OLD_MS = 60_000
INTERRUPT_MS = 1_000


def expiry(state: SessionState, held: Held) -> int:
    """Unix ms at which a held end is the main agent's."""
    return held.at + (HOLD_MS if state.engine == "new" and not held.failed else HOLD_OLD_MS)


def best(held: list[Held]) -> Held:
    """The oldest `Stop`, else the oldest failure."""
    return next((end for end in held if not end.failed), held[0])


def stray(state: SessionState, at: int) -> None:
    """A `Stop` of Unix ms `at` closed nothing."""
    state.strays = [*state.strays[1 - STRAYS :], at]


def add(state: SessionState, end: Held) -> None:
    """Remember the last end of each kind that was told as a subagent's and may be the main agent's."""
    run = state.run
    if run is not None:
        run.doubts = [*(other for other in run.doubts if other.failed is not end.failed), end]


def drop(state: SessionState) -> None:
    """The vendor's process is a new one: the end of what the last one did is not known."""
    if state.run is not None:
        state.run.doubts = []


def worked(state: SessionState) -> None:
    """Somebody called a tool. Where that must be the main agent, no end so far was its own."""
    if state.run is not None and not state.crew.foreground and crew.background(state) <= 0:
        state.run.doubts = []


def settled(state: SessionState) -> Held | None:
    """The end that must have been the open run's, now that it is known to be over."""
    run = state.run
    if run is None or (state.crew.foreground and crew.surplus(state) is Surplus.NONE):
        return None
    return next((end for end in run.doubts if not end.failed), None)
