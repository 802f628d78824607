"""Orders: commands that a link carries out at the vendor's `kimi web` server, which has the last word.

Taking a command only writes an order. A link fetches it, once, and says what came of it; then the command
is acknowledged. What was achieved is told when the vendor broadcasts it, and never before: an accepted
order claims nothing. An order that no link fetches in time is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.lifecycle import commands
from handlers.lifecycle.bounds import CLOSED, ORDERS
from handlers.lifecycle.commands import Cancel, Command, Decide, Nack
from handlers.lifecycle.entries import Order
from handlers.lifecycle.state import SessionState, forget
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

APPROVED, REJECTED = "approved", "rejected"
OPTIONS = (APPROVED, REJECTED)
"""The vendor's own words (kimi-code 2.1.0)."""

FETCH_MS = 4_000
ANSWER_MS = 8_000
"""How long an order waits for a link, and for the link's word; the window of an ack is 10 s."""
OUTCOME_MS = 60_000
_ACKED = 16

_SAID = {
    "gone": Nack("refused", "already-resolved", "too late: somebody else, or the end of the turn, was first"),
    "away": Nack("refused", "unreachable", "the server of kimi web cannot be reached"),
    "unauthorized": Nack("refused", "vendor-unauthorized", "the server of kimi web refuses the link's token"),
    "refused": Nack("refused", "vendor-refused", "the server of kimi web refuses this"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """The link has this session at its server."""

    link: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """The link comes for the orders of this session."""

    link: str


@dataclass(frozen=True, slots=True)
class Done:
    """What came of the order `name`: `done`, a reason why not, or `unknown` where no answer came."""

    name: str
    outcome: str


def claim(w: Writer, given: Claim) -> JSONObject:
    """Remember whose server has the session."""
    w.state.web.link = given.link
    return {}


def answerable(w: Writer, key: str) -> None:
    """The request just told can be answered through a link."""
    state = w.state
    state.web.asks[state.requests[key].id] = key


def decide(w: Writer, command: Command, act: Decide) -> JSONObject:
    """Order an answer to an open request: the first wins, as far as we know."""
    state = w.state
    if (known := _again(state, command)) is not None:
        return known
    _sweep(state)
    key = state.web.asks.get(act.subject)
    if key is None:
        how = state.closed.get(act.subject)
        if how is not None:
            nack = Nack("refused", "closed", f"too late: the request is closed ({how})")
        elif any(request.id == act.subject for request in state.requests.values()):
            nack = Nack("refused", "oob", "this request is answered in the agent's own interface")
        else:
            nack = Nack("invalid", "unknown-request", "no request of that id waits in this session")
        return commands.reject(w, command, nack)
    run = state.requests[key].run
    return _order(w, command, Order(command.id, "respond", key, act.option, act.words, *_whose(command, run)))


def cancel(w: Writer, command: Command, act: Cancel) -> JSONObject:
    """Order the end of the open run."""
    state = w.state
    if (known := _again(state, command)) is not None:
        return known
    run = state.run
    if run is None:
        return commands.reject(w, command, Nack("refused", "no-run", "no run is open in this session"))
    if state.web.run != run.id:
        detail = "a session that is seen through its hooks cannot be cancelled from here, only where it runs"
        return commands.reject(w, command, Nack("unsupported", "unsupported", detail))
    return _order(w, command, Order(command.id, "cancel", run.id, "", False, *_whose(command, run.id)))


def fetch(w: Writer, given: Fetch) -> JSONObject:
    """Hand the waiting orders to the link that has the session; each is handed once."""
    web = w.state.web
    if web.link != given.link:
        return {}
    handed: list[JSONValue] = []
    for name, order in list(web.orders.items()):
        if order.phase == "new":
            web.orders[name] = _moved(order, "handed", order.due - FETCH_MS + ANSWER_MS)
            handed.append(name)
    return {"orders": handed} if handed else {}


def done(w: Writer, given: Done) -> JSONObject:
    """Acknowledge an order by what came of it."""
    web = w.state.web
    order = web.orders.get(given.name)
    if order is None or order.phase != "handed":
        return {}
    nack = _SAID.get(given.outcome)
    if nack is not None:
        del web.orders[given.name]
        return commands.reject(w, _command(given.name, order), nack, run=order.run)
    if given.outcome == "done":
        web.orders[given.name] = _moved(order, "done", w.at + OUTCOME_MS)
    else:
        # It was attempted, and may have been done; what then is told is not known to be ours.
        del web.orders[given.name]
    return commands.accept(w, _command(given.name, order), run=order.run)


def outcome(state: SessionState, kind: str, target: str, option: str = "") -> Order | None:
    """The order that brought this about, by the link's word; it is settled with that."""
    for name, order in list(state.web.orders.items()):
        if order.kind == kind and order.target == target:
            if order.phase == "done":
                del state.web.orders[name]
                return order if order.option == option else None
            return None
    return None


def credited(verdict: Draft, order: Order) -> Draft:
    """An answer that is known to be a command's."""
    if verdict.capture is Capture.NONE:
        return verdict
    data: JSONObject = {**verdict.data, "via": "control"}
    if order.by is not None:
        data["by"] = order.by
    return Draft(verdict.type, data, verdict.subject, verdict.capture, verdict.severity)


def closed(state: SessionState, request: str, how: str) -> None:
    """Remember how a request that could be answered ended."""
    if state.web.asks.pop(request, None) is not None:
        state.closed[request] = how
        forget(state.closed, CLOSED)


def due(state: SessionState) -> int | None:
    """Unix ms at which an order is acknowledged or forgotten whatever the link says."""
    return min((order.due for order in state.web.orders.values()), default=None)


def tick(w: Writer) -> None:
    """Acknowledge what was not fetched or not answered; forget what nothing came of."""
    web = w.state.web
    for name, order in list(web.orders.items()):
        if order.due > w.at:
            continue
        del web.orders[name]
        if order.phase == "new":
            nack = Nack("refused", "no-link", "no link to the server of kimi web took this in time")
            commands.reject(w, _command(name, order), nack, run=order.run)
        elif order.phase == "handed":
            commands.accept(w, _command(name, order), run=order.run)


def _order(w: Writer, command: Command, order: Order) -> JSONObject:
    web = w.state.web
    if web.link is None:
        nack = Nack("refused", "no-link", "no link to the server of kimi web speaks for this session")
        return commands.reject(w, command, nack, run=order.run)
    if any(other.kind == order.kind and other.target == order.target for other in web.orders.values()):
        nack = Nack("refused", "already-decided", "somebody else was first")
        return commands.reject(w, command, nack, run=order.run)
    if len(web.orders) >= ORDERS:
        nack = Nack("busy", "busy", "too many commands are on their way to the server of kimi web")
        return commands.reject(w, command, nack, run=order.run)
    web.orders[command.name] = _moved(order, "new", w.at + FETCH_MS)
    web.acked = [*web.acked[1 - _ACKED :], command.name]
    return {"order": command.name}


def _again(state: SessionState, command: Command) -> JSONObject | None:
    """The reply to a command that came before: its one acknowledgement is on its way, or recorded."""
    return {"order": command.name} if command.name in state.web.acked else None


def _sweep(state: SessionState) -> None:
    """Requests that were closed by something else can be answered no more."""
    for request, key in list(state.web.asks.items()):
        waiting = state.requests.get(key)
        if waiting is None or waiting.id != request:
            closed(state, request, "dismissed")


def _whose(command: Command, run: str | None) -> tuple[str | None, str, str | None, int]:
    return command.by, command.level.value, run, 0


def _command(name: str, order: Order) -> Command:
    return Command(order.command, name, Cancel(), order.by, Capture(order.level))


def _moved(order: Order, phase: Literal["new", "handed", "done"], due: int) -> Order:
    return Order(
        order.command,
        order.kind,
        order.target,
        order.option,
        order.words,
        order.by,
        order.level,
        order.run,
        due,
        phase,
    )
