"""Tool calls: a request and its one terminal, in whatever order and number the hooks arrive.

kimi-code fires `PostToolUse` and `PostToolUseFailure` without waiting for them, so they can come late,
alone or not at all; a rejected call is told twice, as the answer and as a failure (kimi-code 2.1.0).
"""

from __future__ import annotations

from handlers.aep.levels import Capture, JSONObject, Severity
from handlers.lifecycle import crew, past
from handlers.lifecycle.bounds import FAILURES
from handlers.lifecycle.drafts import keep, with_data
from handlers.lifecycle.entries import Call, Failure, Told
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

FAILURE_WAIT_MS = 1_000


def requested(w: Writer, call: str | None, draft: Draft, *, name: str | None = None) -> str:
    """A call begins. An id that is used again is a new call; an older one of that id stays unpaired."""
    if call is not None:
        release(w, call)
    event_id = w.remark(draft)
    if call is not None:
        state = w.state
        state.calls.pop(call, None)
        state.told.pop(call, None)
        run = state.run
        state.calls[call] = Call(event_id, w.at, None if run is None else run.id, name)
    return event_id


def ended(w: Writer, call: str | None, terminal: Draft, fallback: Draft) -> None:
    """A call completed or failed: its terminal, unless it has one already."""
    if call is None:
        w.remark(terminal)
        return
    release(w, call)
    state = w.state
    known = state.calls.pop(call, None)
    if known is not None:
        terminal = with_data(terminal, duration_ms=max(0, w.at - known.at))
        w.emit(terminal, run=known.run, cause=known.id)
        _tell(w, call, Told(known.run, False))
        return
    run = None if state.run is None else state.run.id
    told = state.told.get(call)
    if told is None and past.holds(state.past, run, call):
        w.remark(fallback)
        return
    if told is None or (not told.owed and run is not None and told.run != run):
        w.remark(terminal)
        _tell(w, call, Told(run, False))
        return
    if told.run == run:
        w.remark(fallback)
    else:
        w.emit(fallback, run=told.run)
    if told.owed:
        _tell(w, call, Told(told.run, False))


def failed(w: Writer, call: str | None, terminal: Draft, fallback: Draft, *, asked: bool) -> None:
    """A call failed. `asked`: its permission request has no answer yet, which may say it was denied."""
    if call is None or not asked:
        ended(w, call, terminal, fallback)
        return
    waiting = w.state.failures
    if call in waiting:
        w.remark(fallback)
        return
    waiting[call] = Failure(w.at, w.at + FAILURE_WAIT_MS, keep(terminal), keep(fallback))
    while len(waiting) > FAILURES:
        release(w, next(iter(waiting)))


def release(w: Writer, call: str) -> None:
    """Let a waiting failure of `call` be told."""
    failure = w.state.failures.pop(call, None)
    if failure is not None:
        now, w.at = w.at, failure.at
        ended(w, call, failure.failed.draft(), failure.fallback.draft())
        w.at = now


def denied(w: Writer, call: str | None, draft: Draft) -> None:
    """A call was blocked before it ran: its terminal, unless it has one already."""
    if call is None:
        w.remark(draft)
        return
    state = w.state
    known = state.calls.pop(call, None)
    if known is not None:
        w.emit(draft, run=known.run, cause=known.id)
        _tell(w, call, Told(known.run, True))
        crew.abandoned(state, call)
        return
    run = None if state.run is None else state.run.id
    if call not in state.told and not past.holds(state.past, run, call):
        w.remark(draft)
        _tell(w, call, Told(run, True))


def denial(w: Writer, name: str, call_id: str | None, by: str) -> Draft:
    """The draft of a `tool.denied` (AEP-0002 §5.3); `by` is `policy`, `user_setting` or `runtime`."""
    if w.state.bare:
        return Draft("tool.denied", {}, name, Capture.NONE, Severity.WARNING)
    tool: JSONObject = {"name": name} if call_id is None else {"name": name, "call_id": call_id}
    return Draft("tool.denied", {"tool": tool, "by": by}, name, severity=Severity.WARNING)


def _tell(w: Writer, call: str, told: Told) -> None:
    w.state.told.pop(call, None)
    w.state.told[call] = told
