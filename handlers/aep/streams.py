"""The rules that bind events to each other: order, terminals, the attention lifecycle, acknowledgements.

State is kept per (source, session), because a session's name is its emitter's (AEP-0001 §5.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from handlers.aep.canonical import digest
from handlers.aep.capture import declared_capture, gate_values
from handlers.aep.honesty import check_capture
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.aep.registry import ATTENTION_TERMINALS, RUN_TERMINALS
from handlers.aep.validation import Problem, check_event

_LIFECYCLE = "AEP-0002 §7"
_TERMINAL = "AEP-0002 §2.5"
_VALUES = "AEP-0002 §5.3"


@dataclass(slots=True)
class _Session:
    position: tuple[int, int] | None = None
    ended: bool = False
    runs: dict[str, str] = field(default_factory=dict)
    pending: dict[str, JSONValue] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)


class StreamChecker:
    """Checks events one after the other, in the order in which they were emitted.

    A repeat of the very same event is redelivery, which is legal (AEP-0001 §7.4), and is not judged
    again. Memory grows with the events seen: an id and a digest for each.
    """

    __slots__ = ("_acks", "_seen", "_sessions")

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._acks: dict[tuple[str, str], str] = {}

    def check(self, event: JSONValue) -> list[Problem]:
        """The problems of the next event, alone and after those before it.

        An event that is invalid alone is judged no further.
        """
        problems = check_event(event)
        if problems or not isinstance(event, dict):
            return problems
        identity = str(event["source"]), str(event["id"])
        content = digest(event)
        known = self._seen.setdefault(identity, content)
        if known is not content and known == content:
            return []
        if known != content:
            problems.append(Problem("AEP-0001 §5.1 #2", "id", f"{identity[1]} names two different events"))
        problems += check_capture(event)
        if "session" in event:
            session = self._sessions.setdefault((identity[0], str(event["session"])), _Session())
            problems += _order(event, session)
            problems += _terminals(event, session)
            problems += self._attention(event, session)
        problems += self._acknowledgement(event)
        return problems

    def open_requests(self) -> list[str]:
        """The ids of attention requests without a terminal so far. Legal while a session lives."""
        return [identity for session in self._sessions.values() for identity in session.pending]

    def _attention(self, event: JSONObject, session: _Session) -> Iterator[Problem]:
        event_type, subject = str(event["type"]), event.get("subject")
        if event_type == "attention.requested":
            data = event.get("data")
            session.pending[str(event["id"])] = data.get("fields") if isinstance(data, dict) else None
        elif event_type == "attention.answered" or event_type in ATTENTION_TERMINALS:
            if not isinstance(subject, str):
                yield Problem(f"{_LIFECYCLE}.1", "subject", "does not name the request")
                return
            if subject in session.closed:
                yield Problem(
                    _LIFECYCLE, "type", f"comes after {session.closed[subject]} of request {subject}"
                )
            if event_type == "attention.answered":
                yield from _answer(event, session.pending.get(subject))
            else:
                session.pending.pop(subject, None)
                session.closed.setdefault(subject, event_type)

    def _acknowledgement(self, event: JSONObject) -> Iterator[Problem]:
        cause = event.get("cause")
        if event["type"] not in ("control.accepted", "control.rejected") or not isinstance(cause, str):
            return
        first = self._acks.setdefault((str(event["source"]), cause), str(event["id"]))
        if first != event["id"]:
            yield Problem("AEP-0004 §3", "cause", f"command {cause} was decided before, by {first}")


def _order(event: JSONObject, session: _Session) -> Iterator[Problem]:
    seq, epoch = event.get("seq"), event.get("epoch", 0)
    if not isinstance(seq, int | float) or not isinstance(epoch, int | float):
        return
    here, last = (int(epoch), int(seq)), session.position
    if last is not None and here[0] < last[0]:
        yield Problem("AEP-0001 §7.2", "epoch", f"falls from {last[0]} to {here[0]}")
    elif last is not None and here <= last:
        yield Problem("AEP-0001 §7.2", "seq", f"{here[1]} comes after {last[1]}")
    session.position = max(here, last) if last else here


def _terminals(event: JSONObject, session: _Session) -> Iterator[Problem]:
    event_type, run = str(event["type"]), event.get("run")
    if event_type in RUN_TERMINALS and isinstance(run, str):
        if run in session.runs:
            yield Problem(_TERMINAL, "type", f"run {run} has ended before, by {session.runs[run]}")
        session.runs.setdefault(run, event_type)
    elif event_type == "session.ended":
        if session.ended:
            yield Problem(_TERMINAL, "type", "the session has ended before")
        session.ended = True
        for request in session.pending:
            yield Problem(f"{_LIFECYCLE}.2", "type", f"request {request} is still pending")


def _answer(event: JSONObject, fields: JSONValue) -> Iterator[Problem]:
    """The answers of a form against its fields, where the request was seen (AEP-0006)."""
    data = event.get("data")
    answer = data.get("answer") if isinstance(data, dict) else None
    values = answer.get("values") if isinstance(answer, dict) else None
    if not isinstance(fields, list) or not isinstance(values, dict):
        return
    level = declared_capture(event)
    for name in values.keys() - gate_values(fields, values, level).keys():
        yield Problem(_VALUES, f"data.answer.values.{name}", f"is no answer that capture {level} allows")
    for spec in fields:
        if isinstance(spec, dict):
            yield from _field_answer(spec, values, level)


def _field_answer(spec: JSONObject, values: JSONObject, level: Capture) -> Iterator[Problem]:
    name = str(spec.get("id"))
    if name not in values:
        # below `redacted` a required text is gated out, not missing
        if spec.get("required") is True and level.allows(Capture.REDACTED):
            yield Problem(_VALUES, f"data.answer.values.{name}", "is required and missing")
        return
    if spec.get("type") != "select" or spec.get("other") is True:
        return
    closed = gate_values([spec], {name: values[name]}, Capture.METADATA)
    if not closed:
        yield Problem(_VALUES, f"data.answer.values.{name}", "is not one of the offered choices")
