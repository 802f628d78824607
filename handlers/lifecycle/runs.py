"""Runs: when one begins, and which of the many ends that arrive is the main agent's.

An end while a foreground subagent works is that subagent's; one while only background subagents may be
at work is held until something says whose it was. What is held is told late, as what it turned out to
be, with the time at which it arrived. A run has at most one terminal; no terminal makes up a run.
"""

from __future__ import annotations

from handlers.lifecycle import attention, crew, doubts, gates
from handlers.lifecycle.bounds import HELD
from handlers.lifecycle.crew import Surplus
from handlers.lifecycle.drafts import keep, made, with_data
from handlers.lifecycle.entries import Held, Run
from handlers.lifecycle.names import Turn
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

STRAY_MS = 2_000


def prompted(w: Writer, draft: Draft) -> None:
    """A user's prompt: a boundary, and the beginning of a run."""
    settle(w)
    _open(w, draft, owes=w.state.engine == "new")


def turn_started(w: Writer, turn: Turn, origin: str | None) -> None:
    """A turn of the main agent began, announced by a prompt or not."""
    state = w.state
    number = turn if isinstance(turn, int) else None
    if number is not None:
        if state.turn is not None and number <= state.turn:
            return
        state.turn = number
    run = state.run
    if run is not None and run.owes:
        run.owes = False
        run.turn = turn
        return
    if origin == "user":
        return
    strays = [at for at in state.strays if w.at - at <= STRAY_MS]
    settle(w, by_turn=True)
    trigger = "schedule" if origin == "cron_job" else "agent"
    _open(w, made("run.started", bare=state.bare, trigger=trigger), turn=turn)
    if not strays:
        return
    # TurnStarted is not waited for: its own Stop was faster, unless that was a background subagent's.
    finished = made("run.finished", bare=state.bare)
    if len(strays) > crew.background(state):
        _close(w, finished, measured=False)
    else:
        doubts.add(state, Held(False, w.at, keep(finished), keep(finished)))


def began(w: Writer, turn: Turn, draft: Draft) -> None:
    """The main agent's turn began, by the word of a channel that tells every turn's bounds."""
    settle(w)
    _open(w, draft, turn=turn)


def over(w: Writer, turn: Turn, terminal: Draft, fallback: Draft, *, cause: str | None = None) -> None:
    """The main agent's turn ended, by the word of such a channel; what was asked in it, it will tell too.

    `cause` is what it came from, where that is not the run's beginning.
    """
    run = w.state.run
    if run is None or (turn is not None and run.turn is not None and turn != run.turn):
        w.remark(fallback)
        return
    _disown(w, run, None)
    _close(w, terminal, cause=cause, patient=True)


def queued(w: Writer) -> None:
    """A prompt was queued behind the running turn, whose Stop may then never come."""
    if w.state.run is not None:
        w.state.run.queued = True


def ended(w: Writer, terminal: Draft, fallback: Draft, *, failed: bool) -> None:
    """A `Stop` or `StopFailure`, of whichever agent."""
    state = w.state
    if crew.foreground(state):
        crew.stop_seen(state, failed=failed)
        doubts.add(state, Held(failed, w.at, keep(terminal), keep(fallback)))
        w.remark(fallback)
        return
    if failed and state.crew.failing >= w.at:
        state.crew.failing = 0
        w.remark(fallback)
        return
    run = state.run
    waiting = crew.background(state)
    if run is None:
        w.remark(fallback)
        if not failed:
            doubts.stray(state, w.at)
        return
    if waiting <= 0 or state.ending is not None:
        _disown(w, run, None)
        _close(w, terminal)
        return
    run.held.append(Held(failed, w.at, keep(terminal), keep(fallback)))
    if len(run.held) > HELD:
        _remark_held(w, run.held.pop(0))
    alike = all(held.failed is failed for held in run.held)
    if state.engine == "new" and alike and len(run.held) > waiting:
        _conclude(w, run.held[0])


def left(w: Writer, surplus: Surplus | None) -> None:
    """A foreground subagent is done; `surplus` says whether the run was over already, None that others work.

    What the subagents under it cannot have fired was the main agent's, and overtook the news of them.
    """
    state = w.state
    run = state.run
    if run is None or surplus is None:
        return
    if surplus is Surplus.NONE:
        run.doubts = []
        return
    failed = surplus is Surplus.FAILURE
    run.doubts = [end for end in run.doubts if end.failed is failed]
    if surplus is not Surplus.MAYBE and run.doubts and not run.held and crew.background(state) <= 0:
        _conclude(w, run.doubts[0])


def interrupted(w: Writer, turn: Turn, terminal: Draft, fallback: Draft) -> None:
    """An `Interrupt`. With a foreground subagent the vendor fires two, the subagent's first."""
    state = w.state
    run = state.run
    if run is None:
        w.remark(fallback)
        return
    if turn is not None and run.turn is not None and turn != run.turn:
        w.remark(fallback)
        attention.dismiss_turn(w, turn)
        return
    doubtful = run.turn is None or turn is None or turn == 0
    if run.interrupt is None and doubtful and crew.breaking(state, w.at):
        run.interrupt = Held(False, w.at, keep(terminal), keep(fallback))
        return
    _disown(w, run, None)
    _close(w, terminal)


def disown(w: Writer, count: int, *, failed: bool) -> int:
    """The newest `count` held ends of that kind were a subagent's. How many there were."""
    run = w.state.run
    if run is None:
        if count and not failed:
            del w.state.strays[-count:]
        return 0
    taken: list[Held] = []
    for i in range(len(run.held) - 1, -1, -1):
        if len(taken) >= count:
            break
        if run.held[i].failed is failed:
            taken.append(run.held.pop(i))
            _remark_held(w, taken[-1])
    if len(taken) > 1 or (taken and run.doubts):
        doubts.add(w.state, taken[-1])
    return len(taken)


def resume(w: Writer) -> None:
    """When nobody is in the background any more, an end still held is the main agent's."""
    state = w.state
    run = state.run
    if crew.background(state) > 0:
        return
    if run is not None and run.held:
        _conclude(w, doubts.best(run.held))
    elif run is None and state.closed_at:
        attention.run_ended(w, finished=True)


def settle(w: Writer, *, by_turn: bool = False) -> None:
    """A boundary: the open run, if any, gets the terminal that the evidence allows.

    Finished, where a prompt was queued or the next turn began by itself: had it been cancelled or
    failed, `Interrupt` or `StopFailure` would have said so.
    """
    state = w.state
    run = state.run
    if run is None:
        return
    if run.interrupt is not None:
        _conclude(w, run.interrupt)
    elif run.held:
        _conclude(w, doubts.best(run.held))
    elif (end := doubts.settled(state)) is not None:
        _conclude(w, end)
    else:
        done = run.queued or by_turn
        terminal = "run.finished" if done else "run.cancelled"
        _close(w, made(terminal, bare=state.bare), measured=False)


def due(state: SessionState) -> int | None:
    """Unix ms at which a held end decides itself."""
    run = state.run
    if run is None or not (run.held or run.interrupt):
        return None
    times = [doubts.expiry(state, held) for held in run.held]
    if run.interrupt is not None:
        times.append(run.interrupt.at + doubts.INTERRUPT_MS)
    return min(times, default=None)


def tick(w: Writer) -> None:
    """Decide the held ends whose time has come."""
    state = w.state
    run = state.run
    if run is None:
        return
    if run.interrupt is not None and run.interrupt.at + doubts.INTERRUPT_MS <= w.at:
        _conclude(w, run.interrupt)
        return
    ripe = [held for held in run.held if doubts.expiry(state, held) <= w.at]
    if ripe:
        _conclude(w, doubts.best(ripe))


def _open(w: Writer, draft: Draft, *, turn: Turn = None, owes: bool = False) -> None:
    state = w.state
    attention.give_up(w)
    run_id = f"run_{w.mint.next()}"
    started = w.emit(draft, run=run_id)
    crew.relieve(state)
    state.crew.failing = 0
    state.strays = []
    state.runs += 1
    state.run = Run(run_id, started, w.at, turn, owes)


def _conclude(w: Writer, end: Held) -> None:
    run = w.state.run
    if run is not None:
        _disown(w, run, end)
        _close(w, end.terminal.draft(), at=end.at)


def _disown(w: Writer, run: Run, end: Held | None) -> None:
    """Tell every held end but `end` as the something that it was."""
    others = [held for held in run.held if held is not end]
    if run.interrupt is not None and run.interrupt is not end:
        others.append(run.interrupt)
    for held in sorted(others, key=lambda other: other.at):
        _remark_held(w, held)
        if held is not run.interrupt and not held.failed:
            doubts.stray(w.state, held.at)
    run.held = []
    run.interrupt = None


def _remark_held(w: Writer, held: Held) -> None:
    w.remark(held.fallback.draft(), at=held.at)


def _close(
    w: Writer,
    terminal: Draft,
    *,
    at: int | None = None,
    measured: bool = True,
    cause: str | None = None,
    patient: bool = False,
) -> None:
    state = w.state
    run = state.run
    if run is None:
        return
    gates.run_ended(w)
    if patient:
        attention.turn_ended(w)
    else:
        attention.run_ended(w, finished=terminal.type == "run.finished" and measured)
    if measured and "duration_ms" not in terminal.data:
        end = w.at if at is None else at
        terminal = with_data(terminal, duration_ms=max(0, end - run.at))
    w.emit(terminal, run=run.id, cause=cause or run.started, at=at)
    state.run = None
    state.closed_at = w.at
    crew.relieve(state)
