"""Steering: what was said to a session waits for its next prompt, is handed over at most once, in order.

Handing over is two steps: the prompt is told what waits; its handler fetches the words, looks whether the
client is still there, and takes the instructions out of the queue, which tells them as delivered, and only
then replies. A reply that could not be written after all gives them back to the front.
"""

from __future__ import annotations

from dataclasses import dataclass

from handlers.aep.levels import JSONObject, JSONValue, Severity
from handlers.lifecycle import commands
from handlers.lifecycle.bounds import QUEUE
from handlers.lifecycle.commands import Command, Nack
from handlers.lifecycle.drafts import made
from handlers.lifecycle.entries import Queued
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

EXPIRY_MS = 8 * 3_600_000
TEXT_LIMIT = 4_000

DELIVERED = "x.kimi-code.instruction.delivered"
RETURNED = "x.kimi-code.instruction.returned"
DROPPED = "x.kimi-code.instruction.dropped"


@dataclass(frozen=True, slots=True)
class Deliver:
    """The prompt of `ticket` is about to be told the instructions `names`; the words of `lost` are gone."""

    ticket: str
    names: tuple[str, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The reply of `ticket` was not written."""

    ticket: str


def instruct(w: Writer, command: Command) -> JSONObject:
    """Queue an instruction."""
    state = w.state
    if state.over:
        nack = Nack("refused", "session-ended", "the session has ended")
        return commands.reject(w, command, nack)
    if len(state.queue) >= QUEUE:
        nack = Nack("invalid", "queue-full", f"{QUEUE} instructions are waiting already")
        return commands.reject(w, command, nack)
    state.queue.append(Queued(command.id, command.name, w.at, w.at + EXPIRY_MS))
    return commands.accept(w, command, run=None if state.run is None else state.run.id)


def waiting(state: SessionState) -> JSONObject:
    """The names of what waits, oldest first, for the prompt that may take it."""
    names: list[JSONValue] = [entry.name for entry in state.queue]
    return {"queue": names} if names else {}


def deliver(w: Writer, given: Deliver) -> JSONObject:
    """Take instructions out of the queue; the names of those that are still to be handed over."""
    state = w.state
    wanted, lost = frozenset(given.names), frozenset(given.lost)
    taken = [entry for entry in state.queue if entry.name in wanted]
    for entry in [entry for entry in state.queue if entry.name in lost]:
        _drop(w, entry, "lost")
    if taken:
        state.queue = [entry for entry in state.queue if entry.name not in wanted]
        state.given = [
            Queued(entry.command, entry.name, entry.at, entry.due, given.ticket) for entry in taken
        ]
    for entry in taken:
        _tell(w, DELIVERED, entry, queued_ms=max(0, w.at - entry.at))
    return {"delivered": [entry.name for entry in taken]}


def give_back(w: Writer, given: GiveBack) -> JSONObject:
    """Put what the prompt of that ticket was given back to the front, unless the session has ended."""
    state = w.state
    back = [entry for entry in state.given if entry.ticket == given.ticket]
    state.given = [entry for entry in state.given if entry.ticket != given.ticket]
    again = [Queued(entry.command, entry.name, entry.at, entry.due) for entry in back]
    for entry in again:
        _tell(w, RETURNED, entry)
    state.queue = again + state.queue
    if state.over:
        drop_all(w)
    return {"returned": [entry.name for entry in back]}


def drop_all(w: Writer) -> None:
    """The session ends."""
    for entry in list(w.state.queue):
        _drop(w, entry, "session-ended")


def due(state: SessionState) -> int | None:
    """Unix ms at which the oldest instruction is too old."""
    return min(entry.due for entry in state.queue) if state.queue else None


def tick(w: Writer) -> None:
    """Drop what is too old."""
    for entry in [entry for entry in w.state.queue if entry.due <= w.at]:
        _drop(w, entry, "expired")


def _drop(w: Writer, entry: Queued, reason: str) -> None:
    w.state.queue.remove(entry)
    _tell(w, DROPPED, entry, reason=reason, queued_ms=max(0, w.at - entry.at))


def _tell(w: Writer, kind: str, entry: Queued, **data: JSONValue) -> None:
    draft = made(kind, bare=w.state.bare, **data)
    run = w.state.run
    # What became of a person's words is no machinery (DESIGN §4 rule 12).
    told = Draft(draft.type, draft.data, None, draft.capture, Severity.INFO)
    w.emit(told, run=None if run is None else run.id, cause=entry.command)
