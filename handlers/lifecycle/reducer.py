"""The reducer: `(state, inputs) → (state', events, replies)`. No I/O, no clock, no randomness.

The same state and inputs give the same result, however the inputs are cut into batches; so what a
conflict threw away can be reduced again, and a test can play any story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from handlers.aep.levels import JSONObject
from handlers.aep.ulid import Mint
from handlers.lifecycle import acp, clock, commands, cursors, gates, hooks, instructions, orders, web
from handlers.lifecycle.commands import Answer, Cancel, Command, Decide, Instruct, Respond
from handlers.lifecycle.cursors import Placed
from handlers.lifecycle.gates import Close, Hold
from handlers.lifecycle.instructions import Deliver, GiveBack
from handlers.lifecycle.names import key
from handlers.lifecycle.orders import Claim, Done, Fetch
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.web import Resync
from handlers.lifecycle.writer import Emitted, Writer
from handlers.mapping.moments import Moment

__all__ = [
    "UNKNOWN",
    "Claim",
    "Close",
    "Command",
    "Deliver",
    "Done",
    "Emitted",
    "Fetch",
    "GiveBack",
    "Happening",
    "Hold",
    "Input",
    "Placed",
    "Reduction",
    "Resync",
    "Tick",
    "reduce",
]

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time."""


Happening = (
    Moment | Tick | Hold | Close | Command | Deliver | GiveBack | Placed | Resync | Claim | Fetch | Done
)


class Input(Struct, frozen=True):
    """Something that reached us at Unix milliseconds `at_ms`, and the mint of the ids it will need."""

    moment: Happening
    at_ms: int
    mint: Mint


class Reduction(Struct, frozen=True):
    """The state after the inputs, the events in order, and one reply per input.

    A reply is what the one who brought the input must know: `queue` for a prompt (the names of waiting
    instructions), `gate` for a hold, `closed` for a close, `ack` for a command, `order` for one that a link
    carries out, `orders` for the link that fetches them, `repeat` for a moment that was taken before; `{}`
    where there is nothing to say. It is never what the vendor is told. `acks` are the names of
    acknowledgements and their events' ids.
    """

    state: SessionState
    events: tuple[Emitted, ...]
    replies: tuple[JSONObject, ...]
    acks: tuple[tuple[str, str], ...] = ()


def reduce(
    state: SessionState | None, inputs: Sequence[Input], now_ms: int, *, top: int = 0, own: bool = False
) -> Reduction:
    """Reduce `inputs` in order. Nothing given is changed, but with `own` the state, which is given away.

    `state` is None where none is stored; `now_ms` (Unix milliseconds) is the clock of positions;
    `top` is the highest position of the replay stream, 0 where there is none.
    """
    current = SessionState() if state is None else state if own else state.copy()
    if current.last_seq < top:
        current.last_seq = top
    w = Writer(current, now_ms)
    replies: list[JSONObject] = []
    for given in inputs:
        w.mint = given.mint.copy()
        clock.advance(w, given.at_ms)
        replies.append(_take(w, given.moment))
        current.bound()
    current.due_ms = clock.due(current)
    return Reduction(current, tuple(w.events), tuple(replies), tuple(w.acks))


def _take(w: Writer, given: Happening) -> JSONObject:
    if isinstance(given, Moment):
        return _observe(w, given)
    if isinstance(given, Tick):
        return {}
    if isinstance(given, Placed):
        return _take(w, given.moment) if cursors.admit(w.state, given) else {"repeat": True}
    if isinstance(given, Resync):
        return web.resync(w, given)
    if isinstance(given, Hold):
        _observe(w, given.moment)
        return gates.hold(w, given, key(given.moment.facts.get("tool_call_id")))
    if isinstance(given, Close):
        return gates.close(w, given)
    if isinstance(given, Deliver):
        return instructions.deliver(w, given)
    if isinstance(given, GiveBack):
        return instructions.give_back(w, given)
    if isinstance(given, Claim):
        return orders.claim(w, given)
    if isinstance(given, Fetch):
        return orders.fetch(w, given)
    if isinstance(given, Done):
        return orders.done(w, given)
    return _command(w, given)


def _command(w: Writer, given: Command) -> JSONObject:
    act = given.act
    if isinstance(act, Respond):
        # Only the state knows what is asked there, and so in which words it is answered.
        held = any(gate.id == act.subject for gate in w.state.gates.values())
        act = act.gate if held else act.web
        given = replace(given, act=act)
    if isinstance(act, Answer):
        return gates.answer(w, given, act)
    if isinstance(act, Decide):
        return orders.decide(w, given, act)
    if isinstance(act, Cancel):
        return orders.cancel(w, given, act)
    if isinstance(act, Instruct):
        return instructions.instruct(w, given)
    return commands.reject(w, given, act)


def _observe(w: Writer, moment: Moment) -> JSONObject:
    if moment.session == UNKNOWN:
        _tell(w, moment)
        return {}
    _FRONTS.get(moment.channel, _tell)(w, moment)
    if moment.name == "UserPromptSubmit" and moment.facts.get("is_steer") is not True:
        return instructions.waiting(w.state)
    return {}


def _tell(w: Writer, moment: Moment) -> None:
    """Events of nobody's session, or of a channel without a front-end: told, claiming no lifecycle."""
    for draft in moment.drafts or (moment.fallback,):
        claims = draft.type.startswith(("run.", "attention.")) or draft.type == "session.ended"
        w.remark(moment.fallback if claims else draft)


_FRONTS: Mapping[str, Callable[[Writer, Moment], None]] = {
    "hook": hooks.step,
    "web": web.step,
    "acp": acp.step,
}
