"""The ACP channel's front-end: which of an editor's and its agent's messages is which fact of the lifecycle.

Every answer is joined to its request before it comes here, so nothing has to be guessed: a run is a prompt
and its answer, a permission its request and its answer. `facts` name the `link` (the connection) and the
`ask` (the request's id on it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from handlers.aep.levels import Capture, JSONObject
from handlers.lifecycle import attention, session, tools, turns
from handlers.lifecycle.names import clip, key
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft, Moment

GONE = "end"
"""Name of the moment at which a connection ended."""


def step(w: Writer, moment: Moment) -> None:
    """Take one moment of a session."""
    link = _link(moment)
    w.state.bare = moment.fallback.capture is Capture.NONE
    turns.enter(w, link)
    _HANDLERS.get(moment.name, _remark)(w, moment)
    turns.leave(w)
    if w.state.ending is not None and not turns.busy(w.state):
        session.finish(w)


def _link(moment: Moment) -> str:
    return _text(moment, "link") or "?"


def _text(moment: Moment, fact: str) -> str | None:
    value = moment.facts.get(fact)
    return value if isinstance(value, str) else None


def _remark(w: Writer, moment: Moment) -> None:
    for draft in moment.drafts:
        w.remark(draft)


def _began(w: Writer, moment: Moment) -> None:
    method = _text(moment, "event")
    resumed = method in ("session/load", "session/resume")
    if resumed:
        turns.moved(w, _link(moment))
    w.state.over = False
    session.started(w, _by_client(moment), resumed=resumed)


def _by_client(moment: Moment) -> Draft:
    """The client of an editor's session is the editor, where it has said its name."""
    draft, client = moment.drafts[0], _text(moment, "client_name")
    if client is None or draft.capture is Capture.NONE:
        return draft
    version = _text(moment, "client_version")
    told: JSONObject = {"name": client} if version is None else {"name": client, "version": version}
    data: JSONObject = {**draft.data, "client": told}
    return Draft(draft.type, data, draft.subject, draft.capture, draft.severity)


def _ended(w: Writer, moment: Moment) -> None:
    session.ended(w, moment.drafts[0], moment.fallback)


def _prompt(w: Writer, moment: Moment) -> None:
    w.state.over = False
    turns.asked(w, _link(moment), _text(moment, "ask") or "", moment.drafts[0], moment.fallback)


def _prompt_answered(w: Writer, moment: Moment) -> None:
    refused = moment.facts.get("kind") == "error"
    ask = _text(moment, "ask") or ""
    turns.answered(w, _link(moment), ask, moment.drafts[0], moment.fallback, refused=refused)


def _request(moment: Moment) -> str | None:
    ask = _text(moment, "ask")
    return None if ask is None else f"{_link(moment)}:{ask}"


def _asked(w: Writer, moment: Moment) -> None:
    call = key(moment.facts.get("tool_call_id"))
    attention.requested(
        w, _request(moment), moment.drafts[0], moment.fallback, call=call, main=False, turn=None
    )


def _answered(w: Writer, moment: Moment) -> None:
    request = _request(moment)
    if request is None or request not in w.state.requests:
        w.remark(moment.fallback)
    elif moment.drafts:
        attention.answered(w, request, moment.drafts[0], None, moment.fallback, call=None)
    else:
        # An answer that decides nothing.
        attention.dismiss(w, request)


def _update(w: Writer, moment: Moment) -> None:
    draft = moment.drafts[0] if moment.drafts else None
    call = key(moment.facts.get("tool_call_id"))
    if draft is not None and draft.type == "tool.requested":
        _call(w, moment, call)
    elif moment.partial is not None:
        known = None if call is None else w.state.calls.get(call)
        named = None if known is None or known.name is None else _named(moment.partial, known.name)
        terminal = named or draft
        if terminal is None:
            w.remark(moment.fallback)
        else:
            tools.ended(w, call, terminal, moment.fallback)
    else:
        _remark(w, moment)


def _call(w: Writer, moment: Moment, call: str | None) -> None:
    """A call, which may be told again while it runs, and may be done when it is first told."""
    requested, *done = moment.drafts
    if call is not None and call in w.state.calls:
        if not done:
            w.remark(moment.fallback)
    else:
        title = _text(moment, "tool_title")
        tools.requested(w, call, requested, name=None if title is None else clip(title))
    for terminal in done:
        tools.ended(w, call, terminal, moment.fallback)


def _named(terminal: Draft, tool: str) -> Draft:
    if terminal.capture is Capture.NONE:
        return terminal
    known = terminal.data.get("tool")
    rest = known if isinstance(known, dict) else {}
    data: JSONObject = {**terminal.data, "tool": {"name": tool, **rest}}
    return Draft(terminal.type, data, terminal.subject, terminal.capture, terminal.severity)


def _gone(w: Writer, moment: Moment) -> None:
    """The connection ended: nobody is left to answer what it asked, or to say how its turns ended."""
    link = _link(moment)
    for request in [name for name in w.state.requests if name.startswith(f"{link}:")]:
        attention.dismiss(w, request)
    turns.orphan(w, link)


_HANDLERS: Mapping[str, Callable[[Writer, Moment], None]] = {
    "response:session/new": _began,
    "response:session/load": _began,
    "response:session/resume": _began,
    "response:session/fork": _began,
    "response:session/close": _ended,
    "response:session/delete": _ended,
    "request:session/prompt": _prompt,
    "response:session/prompt": _prompt_answered,
    "error:session/prompt": _prompt_answered,
    "request:session/request_permission": _asked,
    "response:session/request_permission": _answered,
    "error:session/request_permission": _answered,
    "request:elicitation/create": _asked,
    "response:elicitation/create": _answered,
    "error:elicitation/create": _answered,
    "notification:session/update": _update,
    GONE: _gone,
}
