"""The hook channel's front-end: which of the vendor's moments is which fact of the lifecycle.

Only drafts that mapping could make are facts: a moment that mapping degraded is told and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from handlers.aep.levels import Capture
from handlers.lifecycle import attention, crew, doubts, gates, runs, session, tools
from handlers.lifecycle.names import key, turn_of
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Moment

MAIN_AGENT = "main"
ALIVE = frozenset({"SessionStart", "UserPromptSubmit", "PreToolUse"})
"""What the vendor waits for, and so comes from a session that has not ended."""


def step(w: Writer, moment: Moment) -> None:
    """Take one hook event of a session."""
    _notice(w, moment)
    handler = _HANDLERS.get(moment.name)
    if handler is None:
        remark(w, moment)
    else:
        handler(w, moment)
    if w.state.ending is not None and w.state.run is None:
        session.finish(w)


def remark(w: Writer, moment: Moment) -> None:
    """Tell what was mapped, as something that happened in the open run."""
    for draft in moment.drafts:
        w.remark(draft)


def _notice(w: Writer, moment: Moment) -> None:
    facts = moment.facts
    w.state.bare = moment.fallback.capture is Capture.NONE
    if moment.name in ALIVE:
        w.state.over = False
    if "client_type" in facts:
        w.state.engine = "new"
    elif moment.name == "UserPromptSubmit":
        w.state.engine = "v2" if facts.get("has_is_steer") else "v1"


def _session_start(w: Writer, moment: Moment) -> None:
    session.started(w, moment.drafts[0], resumed=moment.facts.get("source") == "resume")


def _session_end(w: Writer, moment: Moment) -> None:
    session.ended(w, moment.drafts[0], moment.fallback)


def _prompt(w: Writer, moment: Moment) -> None:
    if moment.facts.get("is_steer") is True:
        remark(w, moment)
        return
    session.finish(w)
    runs.prompted(w, moment.drafts[0])


def _prompt_queued(w: Writer, moment: Moment) -> None:
    runs.queued(w)
    remark(w, moment)


def _turn_started(w: Writer, moment: Moment) -> None:
    facts = moment.facts
    if facts.get("origin_name") != "subagent":
        origin = facts.get("origin_kind")
        runs.turn_started(w, turn_of(facts.get("turn_id")), origin if isinstance(origin, str) else None)
    remark(w, moment)


def _stop(w: Writer, moment: Moment) -> None:
    runs.ended(w, moment.drafts[0], moment.fallback, failed=moment.name == "StopFailure")


def _interrupt(w: Writer, moment: Moment) -> None:
    runs.interrupted(w, turn_of(moment.facts.get("turn_id")), moment.drafts[0], moment.fallback)


def _pre_tool(w: Writer, moment: Moment) -> None:
    draft, facts = moment.drafts[0], moment.facts
    if draft.type != "tool.requested":
        remark(w, moment)
        return
    call = key(facts.get("tool_call_id"))
    doubts.worked(w.state)
    event_id = tools.requested(w, call, draft)
    tool = facts.get("tool_name")
    if call is not None and isinstance(tool, str) and tool in crew.SPAWNERS:
        crew.spawned(w.state, call, event_id, tool, background=facts.get("background") is True)


def _post_tool(w: Writer, moment: Moment) -> None:
    draft, call = moment.drafts[0], key(moment.facts.get("tool_call_id"))
    if draft.type != "tool.completed":
        remark(w, moment)
        return
    left = None if call is None else crew.returned(w.state, call)
    gates.dismiss_call(w, call)
    tools.ended(w, call, draft, moment.fallback)
    runs.left(w, left)


def _post_tool_failure(w: Writer, moment: Moment) -> None:
    draft, call = moment.drafts[0], key(moment.facts.get("tool_call_id"))
    if draft.type != "tool.failed":
        remark(w, moment)
        return
    left = None if call is None else crew.broke(w.state, call, w.at)
    gates.dismiss_call(w, call)
    tools.failed(w, call, draft, moment.fallback, asked=attention.asked(w.state, call))
    runs.left(w, left)
    runs.resume(w)


def _permission_request(w: Writer, moment: Moment) -> None:
    facts = moment.facts
    agent = facts.get("agent_id")
    # The vendor asks only when the hooks of the call are done.
    gates.dismiss_call(w, key(facts.get("tool_call_id")))
    attention.requested(
        w,
        _request_key(moment),
        moment.drafts[0],
        moment.fallback,
        call=key(facts.get("tool_call_id")),
        main=agent == MAIN_AGENT if isinstance(agent, str) else None,
        turn=turn_of(facts.get("turn_id")),
    )


def _permission_result(w: Writer, moment: Moment) -> None:
    verdict, facts = moment.drafts[0], moment.facts
    if not verdict.type.startswith("attention."):
        attention.broke(w, _request_key(moment), moment.fallback)
        return
    denied, call = None, facts.get("tool_call_id")
    if facts.get("decision") == "rejected":
        tool = facts.get("tool_name")
        if isinstance(tool, str):
            denied = tools.denial(w, tool, call if isinstance(call, str) else None, "runtime")
    attention.answered(w, _request_key(moment), verdict, denied, moment.fallback, call=key(call))
    runs.resume(w)


def _request_key(moment: Moment) -> str | None:
    return key(moment.facts.get("request_id")) or key(moment.facts.get("tool_call_id"))


def _subagent_start(w: Writer, moment: Moment) -> None:
    cause = crew.started(w.state)
    run = w.state.run
    if cause is None or run is None:
        remark(w, moment)
        return
    for draft in moment.drafts:
        w.emit(draft, run=run.id, cause=cause)


def _subagent_stop(w: Writer, moment: Moment) -> None:
    runs.disown(w, crew.stopped(w.state), failed=False)
    remark(w, moment)
    runs.left(w, crew.done(w.state))
    runs.resume(w)


def _task_started(w: Writer, moment: Moment) -> None:
    task = key(moment.facts.get("task_id"))
    if task is not None and moment.facts.get("task_kind") == "agent":
        crew.task_started(w.state, task)
    remark(w, moment)


def _notification(w: Writer, moment: Moment) -> None:
    facts = moment.facts
    task, kind = facts.get("source_id"), facts.get("notification_type")
    if isinstance(task, str) and task.startswith(crew.TASK_PREFIX):
        completed = kind == "task.completed"
        runs.disown(w, crew.notified(w.state, key(task) or "", completed=completed), failed=False)
        if kind == "task.failed" and not runs.disown(w, 1, failed=True):
            crew.failure_told(w.state, w.at)
    remark(w, moment)
    runs.resume(w)


_HANDLERS: Mapping[str, Callable[[Writer, Moment], None]] = {
    "SessionStart": _session_start,
    "SessionEnd": _session_end,
    "UserPromptSubmit": _prompt,
    "UserPromptQueued": _prompt_queued,
    "TurnStarted": _turn_started,
    "Stop": _stop,
    "StopFailure": _stop,
    "Interrupt": _interrupt,
    "PreToolUse": _pre_tool,
    "PostToolUse": _post_tool,
    "PostToolUseFailure": _post_tool_failure,
    "PermissionRequest": _permission_request,
    "PermissionResult": _permission_result,
    "SubagentStart": _subagent_start,
    "SubagentStop": _subagent_stop,
    "TaskStarted": _task_started,
    "Notification": _notification,
}
