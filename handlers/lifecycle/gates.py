"""Held gates: a tool call's hook waits for a human, in the states open → decided → closed.

Whoever takes an answer only decides; the holder of the hook closes, when it knows that it can still apply
the decision, and only then replies to the agent. So `attention.answered` never claims what did not happen.
Everything else (time, a client that left, a result, an interrupt, the session's end, a dead holder) closes
an open or decided gate without `answered`. Each request gets one terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handlers.aep.levels import Capture, JSONObject
from handlers.lifecycle import commands, crew, tools
from handlers.lifecycle.bounds import GATES
from handlers.lifecycle.commands import Answer, Command, Nack
from handlers.lifecycle.drafts import made, with_data, with_subject
from handlers.lifecycle.entries import Gate, Verdict
from handlers.lifecycle.names import clip
from handlers.lifecycle.state import SessionState, forget
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft, Moment

ALLOW, DENY = "allow", "deny"
OPTIONS = (ALLOW, DENY)
LATE_MS = 3_000
"""How long after its time a gate is left to its holder, before anybody closes it."""

_KEPT_CLOSED = 48


@dataclass(frozen=True, slots=True)
class Hold:
    """A `PreToolUse` whose hook is held until Unix ms `until_ms`; `request` is what the human is asked.

    `ticket` is unique, and names the process that holds the hook before its first dot.
    """

    moment: Moment
    request: Draft
    ticket: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Opened:
    """What a holder remembers of its gate, should the session's state be lost."""

    id: str
    at: int  # Unix ms
    run: str | None
    bare: bool


@dataclass(frozen=True, slots=True)
class Close:
    """The hook behind a gate is let go.

    `apply` with the decision, `timeout` because its time is up, `withdrawn` because nobody waits any more.
    `text` are the words that go with the decision, already as they may be told. `opened` is the holder's
    own memory, None where somebody else closes. With a `verdict` no other one is applied.
    """

    ticket: str
    why: Literal["apply", "timeout", "withdrawn"]
    opened: Opened | None = None
    text: str | None = None
    verdict: Verdict | None = None


def hold(w: Writer, given: Hold, call: str | None) -> JSONObject:
    """The call was requested: ask, and remember who waits. `{}` where it cannot be held."""
    state = w.state
    known = None if call is None else state.calls.get(call)
    call_id = given.moment.facts.get("tool_call_id")
    tool = given.moment.facts.get("tool_name")
    if call is None or known is None or len(state.gates) >= GATES or given.ticket in state.gates:
        return {}
    event_id = w.emit(given.request, run=known.run, cause=known.id)
    state.gates[given.ticket] = Gate(
        id=event_id,
        at=w.at,
        until=given.until_ms,
        call=call,
        run=known.run,
        tool=clip(str(tool)),
        call_id=clip(str(call_id)),
        capture=given.request.capture.value,
    )
    return {"gate": event_id, "run": known.run, "at": w.at}


def answer(w: Writer, command: Command, act: Answer) -> JSONObject:
    """Decide an open gate: the first answer wins, and the others are told so."""
    state = w.state
    ticket = next((t for t, gate in state.gates.items() if gate.id == act.subject), None)
    if ticket is None:
        return commands.reject(w, command, _absent(state, act.subject))
    gate = state.gates[ticket]
    if gate.verdict is not None:
        nack = Nack("refused", "already-decided", f"somebody else was first: {gate.verdict.option}")
        return commands.reject(w, command, nack, run=gate.run)
    if w.at >= gate.until:
        nack = Nack("refused", "expired", "too late: its time is up")
        return commands.reject(w, command, nack, run=gate.run)
    verdict = Verdict(act.option, command.id, command.by, command.name if act.words else None)
    state.gates[ticket] = _decided(gate, verdict)
    return commands.accept(w, command, run=gate.run)


def close(w: Writer, given: Close) -> JSONObject:
    """Close a gate. `closed` says how it ended, now or before; None that it is not for this to close it."""
    state = w.state
    gate = state.gates.get(given.ticket)
    if gate is None:
        return {"closed": _lost(w, given.opened)}
    if given.why == "withdrawn":
        dismiss(w, given.ticket)
        return {"closed": "dismissed"}
    if given.why == "timeout":
        if gate.verdict is not None:
            return {"closed": None}
        _expire(w, given.ticket)
        return {"closed": "timeout"}
    if gate.verdict is None or given.verdict not in (None, gate.verdict):
        return {"closed": None}
    return {"closed": _apply(w, given.ticket, gate, gate.verdict, given.text)}


def dismiss(w: Writer, ticket: str) -> None:
    """Nobody waits for this gate any more; what was decided about it was not applied."""
    gate = w.state.gates.pop(ticket)
    _resolve(w, gate, "dismissed", cause=gate.id)
    _remember(w.state, gate.id, "dismissed")


def dismiss_call(w: Writer, call: str | None) -> None:
    """The vendor went on with this call, so its hook waits no more."""
    for ticket, gate in list(w.state.gates.items()):
        if gate.call == call:
            dismiss(w, ticket)


def run_ended(w: Writer) -> None:
    """The main agent's run is over. While subagents work in the background, a gate may be theirs."""
    state = w.state
    if state.gates and crew.background(state) <= 0:
        for ticket in list(state.gates):
            dismiss(w, ticket)


def close_all(w: Writer) -> None:
    """The session ends, and no request outlives it (AEP-0002 §7.2)."""
    for ticket in list(w.state.gates):
        dismiss(w, ticket)


def due(state: SessionState) -> int | None:
    """Unix ms at which a gate is closed, whatever its holder does."""
    if not state.gates:
        return None
    return min(gate.until for gate in state.gates.values()) + LATE_MS


def tick(w: Writer) -> None:
    """Close the gates that their holders should have closed."""
    for ticket, gate in list(w.state.gates.items()):
        if gate.until + LATE_MS <= w.at:
            _expire(w, ticket)


def _absent(state: SessionState, subject: str) -> Nack:
    how = state.closed.get(subject)
    if how is not None:
        return Nack("refused", "closed", f"too late: the request is closed ({how})")
    if any(request.id == subject for request in state.requests.values()):
        return Nack("refused", "oob", "this request is answered in the agent's own interface")
    return Nack("invalid", "unknown-request", "no request of that id waits in this session")


def _decided(gate: Gate, verdict: Verdict) -> Gate:
    return Gate(
        gate.id,
        gate.at,
        gate.until,
        gate.call,
        gate.run,
        gate.tool,
        gate.call_id,
        gate.capture,
        verdict,
    )


def _apply(w: Writer, ticket: str, gate: Gate, verdict: Verdict, text: str | None) -> str:
    del w.state.gates[ticket]
    level = Capture(gate.capture)
    data: JSONObject = {}
    if level is not Capture.NONE:
        told: JSONObject = {"option": verdict.option}
        if text is not None and level.allows(Capture.REDACTED):
            told["text"] = text
        data = {"answer": told, "via": "control"}
        if verdict.by is not None:
            data["by"] = verdict.by
    draft = Draft("attention.answered", data, gate.id, level)
    w.emit(draft, run=gate.run, cause=verdict.command)
    _resolve(w, gate, "answered", cause=verdict.command)
    if verdict.option == DENY:
        tools.denied(w, gate.call, tools.denial(w, gate.tool, gate.call_id, "policy"))
    _remember(w.state, gate.id, verdict.option)
    return verdict.option


def _expire(w: Writer, ticket: str) -> None:
    gate = w.state.gates.pop(ticket)
    draft = made("attention.timeout", bare=_bare(gate), after_ms=max(0, w.at - gate.at))
    w.emit(with_subject(draft, gate.id), run=gate.run, cause=gate.id)
    _remember(w.state, gate.id, "timeout")


def _resolve(w: Writer, gate: Gate, resolution: str, *, cause: str) -> None:
    draft = made("attention.resolved", bare=_bare(gate), resolution=resolution)
    draft = with_subject(with_data(draft, latency_ms=max(0, w.at - gate.at)), gate.id)
    w.emit(draft, run=gate.run, cause=cause)


def _lost(w: Writer, opened: Opened | None) -> str | None:
    """How a gate ended that is not there. One that the state knows nothing of was lost with it."""
    if opened is None:
        return None
    how = w.state.closed.get(opened.id)
    if how is None:
        draft = made("attention.resolved", bare=opened.bare, resolution="dismissed")
        draft = with_subject(with_data(draft, latency_ms=max(0, w.at - opened.at)), opened.id)
        w.emit(draft, run=opened.run, cause=opened.id)
        how = "dismissed"
        _remember(w.state, opened.id, how)
    return how


def _remember(state: SessionState, gate_id: str, how: str) -> None:
    state.closed[gate_id] = how
    forget(state.closed, _KEPT_CLOSED)


def _bare(gate: Gate) -> bool:
    return gate.capture == Capture.NONE.value
