"""Requests for a human: each gets exactly one terminal, at the latest before the session's end.

Observed requests are answered in the vendor's own interface (`respond_via: ["oob"]`). Both hooks of
the pair are sent without waiting, so the answer can overtake its request, and an aborted turn sends no
answer at all (kimi-code 2.1.0). A tool's result never closes a request.
"""

from __future__ import annotations

from handlers.aep.levels import Capture
from handlers.lifecycle import crew, tools
from handlers.lifecycle.bounds import REQUESTS, RESULTS
from handlers.lifecycle.drafts import keep, made, with_data, with_subject
from handlers.lifecycle.entries import Request, Result
from handlers.lifecycle.names import Turn
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

RESULT_WAIT_MS = 2_000
DISMISS_MS = 2_000
ABANDONED_MS = 24 * 3_600_000


def requested(
    w: Writer,
    key: str | None,
    draft: Draft,
    fallback: Draft,
    *,
    call: str | None,
    main: bool | None,
    turn: Turn,
) -> None:
    """A human is asked. Without an id of the vendor's nothing can answer the request but a boundary."""
    state = w.state
    run = state.run
    if key is not None:
        older = state.requests.get(key)
        if older is not None:
            if older.run == (None if run is None else run.id):
                w.remark(fallback)
                return
            dismiss(w, key)
    known = None if call is None else state.calls.get(call)
    if known is not None:
        event_id = w.emit(draft, run=known.run, cause=known.id)
        owner = known.run
    else:
        event_id = w.remark(draft)
        owner = None if run is None else run.id
    late = run is None and (state.ended or (main is not False and w.at - state.closed_at <= DISMISS_MS))
    due = w.at + (DISMISS_MS if late else ABANDONED_MS)
    key = key or event_id
    state.requests[key] = Request(event_id, w.at, due, call, owner, main, turn, draft.capture is Capture.NONE)
    while len(state.requests) > REQUESTS:
        dismiss(w, next(iter(state.requests)))
    early = state.results.pop(key, None)
    if early is not None and key in state.requests:
        denied = None if early.denied is None else early.denied.draft()
        _answer(w, key, early.verdict.draft(), denied, early.call)


def closed(w: Writer, key: str | None, verdict: Draft, fallback: Draft, *, cause: str | None = None) -> None:
    """The end of a request in a channel that keeps the order: an answer, or that there will be none.

    `cause` is the command that brought it about, where one did.
    """
    if key is None or key not in w.state.requests:
        w.remark(fallback)
    else:
        _answer(w, key, verdict, None, None, cause)


def answered(
    w: Writer, key: str | None, verdict: Draft, denied: Draft | None, fallback: Draft, *, call: str | None
) -> None:
    """The answer to a request: `verdict` as mapped, `denied` where it also blocks the call."""
    state = w.state
    if key is None or key in state.results:
        w.remark(fallback)
    elif key in state.requests:
        _answer(w, key, verdict, denied, call)
    else:
        kept = None if denied is None else keep(denied)
        due = w.at + RESULT_WAIT_MS
        state.results[key] = Result(w.at, due, call, keep(verdict), kept, keep(fallback))
        while len(state.results) > RESULTS:
            _give_up(w, next(iter(state.results)))


def broke(w: Writer, key: str | None, fallback: Draft) -> None:
    """The vendor could not ask or lost the answer: nothing was decided, and nobody waits any more."""
    w.remark(fallback)
    if key is not None and key in w.state.requests:
        _hasten(w.state, key, w.at + DISMISS_MS)


def asked(state: SessionState, call: str | None) -> bool:
    """Whether an answer that could deny `call` is still to come."""
    if call is None:
        return False
    return any(request.call == call for request in state.requests.values()) or any(
        result.call == call for result in state.results.values()
    )


def dismiss(w: Writer, key: str) -> None:
    """Close a request that nobody will answer."""
    bare = w.state.requests[key].bare
    _resolve(w, key, made("attention.resolved", bare=bare, resolution="dismissed"))


def dismiss_turn(w: Writer, turn: Turn) -> None:
    """A subagent's turn was interrupted: what it asked is void."""
    for key, request in list(w.state.requests.items()):
        if request.turn == turn and request.main is False:
            dismiss(w, key)


def run_ended(w: Writer, *, finished: bool) -> None:
    """The main agent's run ends: nobody waits for its requests. An answer on its way gets its time."""
    state = w.state
    busy = crew.background(state) > 0
    for key, request in list(state.requests.items()):
        if busy and request.main is not True:
            continue
        if finished:
            _hasten(state, key, w.at + DISMISS_MS)
        else:
            dismiss(w, key)


def turn_ended(w: Writer) -> None:
    """The main agent's turn ended, and the channel tells the end of its requests itself, in a moment."""
    for key, request in list(w.state.requests.items()):
        if request.main is True:
            _hasten(w.state, key, w.at + DISMISS_MS)


def run_closed(w: Writer, run: str) -> None:
    """The run `run` ends, whatever else is open: an answer on its way gets its time."""
    for key, request in list(w.state.requests.items()):
        if request.run == run:
            _hasten(w.state, key, w.at + DISMISS_MS)


def give_up(w: Writer) -> None:
    """No request that an answer still waits for can come any more."""
    for key in list(w.state.results):
        _give_up(w, key)


def close(w: Writer) -> None:
    """The session ends: every request, every answer and every failure that waits is told now."""
    state = w.state
    give_up(w)
    for key in list(state.requests):
        dismiss(w, key)
    for call in list(state.failures):
        tools.release(w, call)


def due(state: SessionState) -> int | None:
    """Unix ms at which a request, an answer or a failure has waited long enough."""
    if not (state.requests or state.results or state.failures):
        return None
    times = [request.due for request in state.requests.values()]
    times += [result.due for result in state.results.values()]
    times += [failure.due for failure in state.failures.values()]
    return min(times, default=None)


def tick(w: Writer) -> None:
    """Tell what has waited long enough."""
    state = w.state
    for key, result in list(state.results.items()):
        if result.due <= w.at:
            _give_up(w, key)
    for call, failure in list(state.failures.items()):
        if failure.due <= w.at:
            tools.release(w, call)
    for key, request in list(state.requests.items()):
        if request.due <= w.at:
            dismiss(w, key)


def _answer(
    w: Writer, key: str, verdict: Draft, denied: Draft | None, call: str | None, cause: str | None = None
) -> None:
    if verdict.type == "attention.resolved":
        _resolve(w, key, verdict, cause=cause)
        return
    request = w.state.requests[key]
    w.emit(with_subject(verdict, request.id), run=request.run, cause=cause or request.id)
    resolved = made("attention.resolved", bare=request.bare, resolution="answered")
    _resolve(w, key, resolved, denied, call or request.call, cause=cause)


def _resolve(
    w: Writer,
    key: str,
    resolved: Draft,
    denied: Draft | None = None,
    call: str | None = None,
    *,
    cause: str | None = None,
) -> None:
    state = w.state
    request = state.requests.pop(key)
    resolved = with_subject(with_data(resolved, latency_ms=max(0, w.at - request.at)), request.id)
    w.emit(resolved, run=request.run, cause=cause or request.id)
    if denied is not None:
        tools.denied(w, call, denied)
    for waiting in (request.call, call):
        if waiting is not None and not asked(state, waiting):
            tools.release(w, waiting)


def _give_up(w: Writer, key: str) -> None:
    result = w.state.results.pop(key)
    w.remark(result.fallback.draft(), at=result.at)
    if result.call is not None and not asked(w.state, result.call):
        tools.release(w, result.call)


def _hasten(state: SessionState, key: str, due: int) -> None:
    request = state.requests[key]
    if due < request.due:
        state.requests[key] = Request(
            request.id,
            request.at,
            due,
            request.call,
            request.run,
            request.main,
            request.turn,
            request.bare,
        )
