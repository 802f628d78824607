"""The `kimi web` channel's front-end: its frames tell real turn boundaries, in order, each once.

In companion mode a frame is only told, in the run that the hooks opened; mapping made nothing else of it.
In primary mode the vendor's turns of the main agent are the runs. Where hooks of the session were seen they
keep the core story, whatever the mode: two authorities would tell every run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity
from handlers.lifecycle import attention, orders, runs, tools
from handlers.lifecycle.bounds import WORD
from handlers.lifecycle.drafts import made, with_data
from handlers.lifecycle.entries import Form
from handlers.lifecycle.names import Turn, key, turn_of
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft, Moment

MAIN_AGENT = "main"
GAP = "x.kimi-code.web.gap"

_DIGITS = 16
_FORM_SIZE = 1_200


@dataclass(frozen=True, slots=True)
class Resync:
    """What the vendor says a session is now, where its frames cannot be had any more.

    `stream` and `number` are the cursor that the snapshot stands at (`web.{epoch}`). `turn` is the main
    agent's turn in flight, None where there is none. `asks` are the pending requests, mapped like their
    frames. `reason` is why frames were missed, None where none were known to be; `missed` how many.
    `rewound` is the stamp of the last frame that we took, where the vendor has another one in its place.
    """

    stream: str
    number: int
    turn: Turn = None
    running: bool = False
    asks: tuple[Moment, ...] = field(default=())
    reason: str | None = None
    missed: int | None = None
    rewound: str | None = None
    primary: bool = False
    bare: bool = False


def step(w: Writer, moment: Moment) -> None:
    """Take one frame of a session."""
    state = w.state
    if not hooked(state):
        state.bare = moment.fallback.capture is Capture.NONE
    handler = _HANDLERS.get(moment.name)
    if handler is not None and _core(moment):
        if hooked(state):
            w.remark(moment.fallback)
        else:
            handler(w, moment)
        return
    if moment.name == "turn.step.completed":
        _spent(state, moment)
    for draft in moment.drafts or (moment.fallback,):
        w.remark(moment.fallback if hooked(state) else draft)


def hooked(state: SessionState) -> bool:
    """Whether hooks of this session were seen."""
    return bool(state.engine) or state.started is not None


def resync(w: Writer, given: Resync) -> JSONObject:
    """Bring the state in line with a snapshot. One that is older than what was taken says nothing."""
    state = w.state
    stream = key(given.stream) or ""
    last = state.cursors.pop(stream, None)
    if last is not None and given.rewound and given.rewound == state.web.stamp:
        # The vendor numbers anew from some frame before this one.
        last = None
    state.cursors[stream] = given.number if last is None else max(last, given.number)
    if last is not None and last > given.number:
        return {"repeat": True}
    if last != given.number:
        state.web.stamp = ""
    if given.reason is not None and last != given.number:
        _gap(w, given)
    if not given.primary or hooked(state):
        return {}
    state.bare = given.bare
    state.web.whole = state.web.whole and given.reason is None
    pending = {_request_key(ask) for ask in given.asks}
    for asked in list(state.requests):
        if asked not in pending:
            attention.dismiss(w, asked)
    if state.run is not None and not (given.running and state.run.turn == given.turn):
        runs.settle(w)
    if given.running and state.run is None:
        runs.began(w, given.turn, made("run.started", bare=given.bare))
        state.web.run, state.web.whole = _open_run(state), False
    for ask in given.asks:
        if _request_key(ask) not in state.requests:
            step(w, ask)
    return {}


def _gap(w: Writer, given: Resync) -> None:
    more = {} if given.missed is None else {"missed": given.missed}
    draft = made(GAP, bare=given.bare, reason=given.reason, **more)
    w.remark(Draft(draft.type, draft.data, None, draft.capture, Severity.WARNING))


def _core(moment: Moment) -> bool:
    return moment.partial is not None or any(not draft.type.startswith("x.") for draft in moment.drafts)


def _open_run(state: SessionState) -> str | None:
    return None if state.run is None else state.run.id


def _turn_started(w: Writer, moment: Moment) -> None:
    runs.began(w, turn_of(moment.facts.get("turn_id")), moment.drafts[0])
    web = w.state.web
    web.run = _open_run(w.state)
    web.whole, web.input, web.output = True, 0, 0


def _spent(state: SessionState, moment: Moment) -> None:
    facts, web = moment.facts, state.web
    if web.run is None or web.run != _open_run(state) or facts.get("agent_id") != MAIN_AGENT:
        return
    spent, made = facts.get("input_tokens"), facts.get("output_tokens")
    if isinstance(spent, int) and isinstance(made, int):
        web.input += spent
        web.output += made
    else:
        web.whole = False


def _turn_ended(w: Writer, moment: Moment) -> None:
    terminal, web = moment.drafts[0], w.state.web
    duration = moment.facts.get("duration_ms")
    if duration is not None:
        terminal = with_data(terminal, duration_ms=duration)
    known = web.whole and (web.input or web.output) and web.run == _open_run(w.state)
    if known and terminal.type == "run.finished":
        usage: JSONObject = {
            "gen_ai.usage.input_tokens": web.input,
            "gen_ai.usage.output_tokens": web.output,
        }
        terminal = with_data(terminal, **usage)
    order = None
    if terminal.type == "run.cancelled" and w.state.run is not None:
        order = orders.outcome(w.state, "cancel", w.state.run.id)
    cause = None if order is None else order.command
    runs.over(w, turn_of(moment.facts.get("turn_id")), terminal, moment.fallback, cause=cause)


def _call_key(moment: Moment) -> str | None:
    """Turn ids begin anew with every agent, and a call id may come again in a later turn."""
    facts = moment.facts
    call = facts.get("tool_call_id")
    if not isinstance(call, str):
        return None
    return key(f"{_agent(moment)}.{facts.get('turn_id')}.{call}")


def _agent(moment: Moment) -> str:
    agent = moment.facts.get("agent_id")
    return agent if isinstance(agent, str) else MAIN_AGENT


def _tool_started(w: Writer, moment: Moment) -> None:
    name = moment.facts.get("tool_name")
    known = name if isinstance(name, str) and len(name.encode("utf-8", "replace")) <= WORD else None
    tools.requested(w, _call_key(moment), moment.drafts[0], name=known)


def _tool_result(w: Writer, moment: Moment) -> None:
    """A result names no tool on the wire; without its request it is only something that happened."""
    call, partial = _call_key(moment), moment.partial
    known = None if call is None else w.state.calls.get(call)
    if partial is None or known is None or known.name is None:
        w.remark(moment.fallback)
    else:
        tools.ended(w, call, _named(partial, known.name), moment.fallback)


def _named(partial: Draft, name: str) -> Draft:
    data = dict(partial.data)
    tool = data.get("tool")
    if isinstance(tool, dict):
        data["tool"] = {"name": name, **tool}
    return Draft(partial.type, data, name, partial.capture, partial.severity)


def _request_key(moment: Moment) -> str | None:
    return key(moment.facts.get("request_id"))


def _asked(w: Writer, moment: Moment) -> None:
    asked = _request_key(moment)
    attention.requested(
        w,
        asked,
        moment.drafts[0],
        moment.fallback,
        call=_call_key(moment),
        main=_agent(moment) == MAIN_AGENT,
        turn=turn_of(moment.facts.get("turn_id")),
    )
    if asked is None or asked not in w.state.requests:
        return
    if moment.facts.get("answerable") is True:
        orders.answerable(w, asked)
    form = _form(moment.facts.get("questions"))
    if form is not None:
        w.state.web.forms[asked] = form


def _closed(w: Writer, moment: Moment) -> None:
    asked, verdict = _request_key(moment), moment.drafts[0]
    form = None if asked is None else w.state.web.forms.pop(asked, None)
    if verdict.type == "attention.answered" and form is not None:
        verdict = _by_ids(verdict, form, moment.facts.get("answers"))
    request = None if asked is None else w.state.requests.get(asked)
    if asked is None or request is None:
        w.remark(moment.fallback)
        return
    said = moment.facts.get("decision")
    option = said if isinstance(said, str) else ""
    order = orders.outcome(w.state, "respond", asked, option)
    if order is not None:
        verdict = orders.credited(verdict, order)
    attention.closed(w, asked, verdict, moment.fallback, cause=None if order is None else order.command)
    orders.closed(w.state, request.id, option or "dismissed")


def _form(questions: JSONValue) -> Form | None:
    """The questions as they are kept; None where they are too many to keep."""
    if not isinstance(questions, list) or not questions:
        return None
    kept: list[tuple[str, str, list[tuple[str, str]]]] = []
    size = 0
    for question in questions:
        if not isinstance(question, list):
            return None
        name, digest, options = question
        if not isinstance(options, list):
            return None
        pairs = [(str(one[0]), str(one[1])[:_DIGITS]) for one in options if isinstance(one, list)]
        kept.append((str(name), str(digest)[:_DIGITS], pairs))
        size += 40 + 2 * len(str(name)) + sum(30 + 2 * len(option) for option, _ in pairs)
    return Form(kept) if size <= _FORM_SIZE else None


def _by_ids(verdict: Draft, form: Form, answers: JSONValue) -> Draft:
    """The answers as ids, which are structure. Words of a human's own ride only where the draft has them."""
    if verdict.capture is Capture.NONE or not isinstance(answers, list):
        return verdict
    answer = verdict.data.get("answer")
    told = answer.get("values") if isinstance(answer, dict) else None
    words = list(told.values()) if isinstance(told, dict) and len(told) == len(answers) else []
    questions = {digest: (name, dict(_turned(options))) for name, digest, options in form.questions}
    values: JSONObject = {}
    for place, given in enumerate(answers):
        if not isinstance(given, list) or not isinstance(given[1], list):
            return verdict
        found = questions.get(str(given[0])[:_DIGITS])
        if found is None:
            return verdict
        name, options = found
        chosen = _choice(options, [str(one)[:_DIGITS] for one in given[1]])
        if chosen is None and words:
            chosen = words[place]
        if chosen is not None:
            values[name] = chosen
    return Draft(
        verdict.type,
        {**verdict.data, "answer": {"values": values} if values else {}},
        verdict.subject,
        verdict.capture,
        verdict.severity,
    )


def _turned(options: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(digest, name) for name, digest in options]


def _choice(options: Mapping[str, str], digests: list[str]) -> JSONValue:
    """The id of the option, or those of several; None where it is not all options."""
    whole, parts = digests[0], digests[1:]
    if whole in options:
        return options[whole]
    if parts and all(part in options for part in parts):
        return [options[part] for part in parts]
    return None


def _subagent_started(w: Writer, moment: Moment) -> None:
    state, facts = w.state, moment.facts
    child, call = facts.get("subagent_id"), facts.get("parent_tool_call_id")
    parent = _call_of(state, _agent(moment), call) if isinstance(call, str) else None
    event_id = _link(w, moment.drafts[0], parent)
    _begin(state, "a", child, event_id)


def _subagent_stopped(w: Writer, moment: Moment) -> None:
    _link(w, moment.drafts[0], _ended(w.state, "a", moment.facts.get("subagent_id")))


def _task_started(w: Writer, moment: Moment) -> None:
    _begin(w.state, "t", moment.facts.get("task_id"), _link(w, moment.drafts[0], None))


def _task_ended(w: Writer, moment: Moment) -> None:
    _link(w, moment.drafts[0], _ended(w.state, "t", moment.facts.get("task_id")))


def _link(w: Writer, draft: Draft, cause: str | None) -> str:
    run = w.state.run
    if cause is None:
        return w.remark(draft)
    return w.emit(draft, run=None if run is None else run.id, cause=cause)


def _call_of(state: SessionState, agent: str, call: str) -> str | None:
    """The `tool.requested` of an agent's open call, whose turn is not told."""
    start, end = f"{agent}.", f".{call}"
    for name in reversed(state.calls):
        if name.startswith(start) and name.endswith(end):
            return state.calls[name].id
    return None


def _begin(state: SessionState, kind: str, name: JSONValue, event_id: str) -> None:
    place = key(f"{kind}.{name}") if isinstance(name, str) else None
    if place is not None:
        state.web.begun.pop(place, None)
        state.web.begun[place] = event_id


def _ended(state: SessionState, kind: str, name: JSONValue) -> str | None:
    place = key(f"{kind}.{name}") if isinstance(name, str) else None
    return None if place is None else state.web.begun.pop(place, None)


_HANDLERS: Mapping[str, Callable[[Writer, Moment], None]] = {
    "turn.started": _turn_started,
    "turn.ended": _turn_ended,
    "tool.call.started": _tool_started,
    "tool.result": _tool_result,
    "event.approval.requested": _asked,
    "event.approval.resolved": _closed,
    "event.question.requested": _asked,
    "event.question.answered": _closed,
    "event.question.dismissed": _closed,
    "subagent.spawned": _subagent_started,
    "subagent.completed": _subagent_stopped,
    "subagent.failed": _subagent_stopped,
    "task.started": _task_started,
    "task.terminated": _task_ended,
}
