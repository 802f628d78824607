"""Runs of a channel that says itself which run an end ends: the turns of an editor's prompts.

A turn is known by the link that it came through and the request that asked for it, so that several may be
open at once where several processes have the session. A second prompt on one link waits: most agents refuse
it, and then it was no run.
"""

from __future__ import annotations

from handlers.lifecycle import attention
from handlers.lifecycle.bounds import PROMPTS, TURNS
from handlers.lifecycle.drafts import keep, made, with_data
from handlers.lifecycle.entries import Acp, Open, Prompt, Run
from handlers.lifecycle.state import SessionState, forget
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft


def name(link: str, ask: str) -> str:
    """Of a turn: its link, and what is unique on it."""
    return f"{link}:{ask}"


def enter(w: Writer, link: str) -> None:
    """What happens now happens in the turn of `link`, if it has one."""
    acp = _open_state(w.state)
    w.state.run = _run(acp, _of(acp, link))


def leave(w: Writer) -> None:
    """What happens now belongs to no link: it is in the turn that began last."""
    acp = _open_state(w.state)
    w.state.run = _run(acp, list(acp.turns))


def busy(state: SessionState) -> bool:
    """Whether a turn is open."""
    return state.acp is not None and bool(state.acp.turns)


def asked(w: Writer, link: str, ask: str, draft: Draft, beside: Draft) -> None:
    """A prompt: a turn begins, or `beside` is told while the link's own turn is open.

    Turns whose link is gone are over, whatever became of them.
    """
    acp = _open_state(w.state)
    for turn in _of(acp, ""):
        _settle(w, acp, turn)
    enter(w, link)
    if not _of(acp, link):
        _open(w, acp, name(link, ask), draft)
        return
    w.remark(beside)
    acp.prompts[name(link, ask)] = Prompt(w.at, keep(draft))
    forget(acp.prompts, PROMPTS)


def answered(w: Writer, link: str, ask: str, terminal: Draft, fallback: Draft, *, refused: bool) -> None:
    """The answer to a prompt: the one end of its turn. `refused` says that it is a JSON-RPC error."""
    acp, turn = _open_state(w.state), name(link, ask)
    waiting = acp.prompts.pop(turn, None)
    if waiting is not None and not refused:
        # It ran beside the other one.
        _open(w, acp, turn, waiting.draft.draft(), at=waiting.at)
    if turn not in acp.turns:
        w.remark(fallback)
        return
    _close(w, acp, turn, terminal)
    if not _of(acp, link):
        for other in [prompt for prompt in acp.prompts if prompt.startswith(f"{link}:")][:1]:
            _open(w, acp, other, acp.prompts.pop(other).draft.draft())


def orphan(w: Writer, link: str) -> None:
    """The link is gone: nothing can end its turns any more but a boundary."""
    acp = _open_state(w.state)
    for turn in _of(acp, link):
        run = acp.turns.pop(turn)
        acp.turns[name("", run.id)] = run
    for waiting in [prompt for prompt in acp.prompts if prompt.startswith(f"{link}:")]:
        del acp.prompts[waiting]


def moved(w: Writer, link: str) -> None:
    """The session was loaded through `link`: what other links left open is over."""
    acp = _open_state(w.state)
    for turn in list(acp.turns):
        if not turn.startswith(f"{link}:"):
            _settle(w, acp, turn)
    enter(w, link)


def settle(w: Writer) -> None:
    """The session ends: its open turns do, without their end having been seen."""
    acp = w.state.acp
    if acp is not None:
        for turn in list(acp.turns):
            _settle(w, acp, turn)
        acp.prompts = {}


def _settle(w: Writer, acp: Acp, turn: str) -> None:
    _close(w, acp, turn, made("run.cancelled", bare=w.state.bare), measured=False)


def _open(w: Writer, acp: Acp, turn: str, draft: Draft, *, at: int | None = None) -> None:
    run = f"run_{w.mint.next()}"
    started = w.emit(draft, run=run, at=at)
    w.state.runs += 1
    acp.turns[turn] = Open(run, started, w.at if at is None else at)
    while len(acp.turns) > TURNS:
        _settle(w, acp, next(iter(acp.turns)))
    w.state.run = _run(acp, [turn])


def _close(w: Writer, acp: Acp, turn: str, terminal: Draft, *, measured: bool = True) -> None:
    run = acp.turns.pop(turn)
    attention.run_closed(w, run.id)
    if measured:
        terminal = with_data(terminal, duration_ms=max(0, w.at - run.at))
    w.emit(terminal, run=run.id, cause=run.started)
    w.state.closed_at = w.at
    w.state.run = _run(acp, _of(acp, turn.partition(":")[0]))


def _open_state(state: SessionState) -> Acp:
    if state.acp is None:
        state.acp = Acp()
    return state.acp


def _of(acp: Acp, link: str) -> list[str]:
    return [turn for turn in acp.turns if turn.startswith(f"{link}:")]


def _run(acp: Acp, turns: list[str]) -> Run | None:
    """The last of `turns`, as the rest of the lifecycle knows a run."""
    if not turns:
        return None
    run = acp.turns[turns[-1]]
    return Run(run.id, run.started, run.at)
