"""Payloads of every kind, as a living vendor sends them, with content marked so that a leak shows."""

from __future__ import annotations

from typing import Any

CONTENT = "C0NTENT"
"""In every field that may hold what a user, a model or a tool said."""

SECRET = "hunter2hunter2"
"""Beside CONTENT, known to the redactor of `support.posture`."""

SAID = f"{CONTENT} {SECRET}"
PLACE = "/home/ada/PLACE"
"""A working directory: it never rides, at no level."""

_COMMON = {"session_id": "session_1", "cwd": PLACE, "client_type": "kimi_code_cli", "session_title": SAID}
_CALL = {"tool_name": "Bash", "tool_call_id": "call_1", "tool_input": {"command": SAID}}
_ASK = {
    **_CALL,
    "id": "approval_1",
    "agent_id": "main",
    "turn_id": 7,
    "action": f"Running: {SAID}",
    "display": {"kind": "command", "command": SAID, "cwd": PLACE, "language": "bash"},
}
_PROMPT = [
    {"type": "text", "text": SAID},
    {"type": "image_url", "imageUrl": {"url": "data:image/png;base64,QUJD"}},
    {"type": "text", "text": "and more"},
]


def _hook(event: str, /, **fields: Any) -> dict[str, Any]:
    return {"hook_event_name": event, **_COMMON, **fields}


HOOKS: dict[str, dict[str, Any]] = {
    "SessionStart": _hook("SessionStart", source="resume", model="mock/m1", profile="agent"),
    "SessionEnd": _hook("SessionEnd", reason="archive"),
    "UserPromptSubmit": _hook("UserPromptSubmit", prompt=_PROMPT, is_steer=False),
    "UserPromptSubmit_steer": _hook("UserPromptSubmit", prompt=_PROMPT, is_steer=True),
    "Stop": _hook("Stop", stop_hook_active=False),
    "StopFailure": _hook("StopFailure", error_type="APIStatusError", error_message=SAID),
    "Interrupt": _hook("Interrupt", turn_id=7, reason="cancelled"),
    "PreToolUse": _hook("PreToolUse", **_CALL),
    "PostToolUse": _hook("PostToolUse", **_CALL, tool_output=SAID),
    "PostToolUseFailure": _hook(
        "PostToolUseFailure", **_CALL, error={"code": "internal", "message": SAID, "retryable": False}
    ),
    "PermissionRequest": _hook("PermissionRequest", **_ASK),
    "PermissionResult_approved": _hook(
        "PermissionResult", **_ASK, decision="approved", scope="session", selected_label="Approve once"
    ),
    "PermissionResult_plan": _hook("PermissionResult", **_ASK, decision="approved", selected_label=SAID),
    "PermissionResult_rejected": _hook("PermissionResult", **_ASK, decision="rejected", feedback=SAID),
    "PermissionResult_cancelled": _hook("PermissionResult", **_ASK, decision="cancelled"),
    "PermissionResult_error": _hook("PermissionResult", **_ASK, decision="error", error=SAID),
    "SubagentStart": _hook("SubagentStart", agent_name="coder", prompt=SAID),
    "SubagentStop": _hook("SubagentStop", agent_name="coder", response=SAID),
    "PreCompact": _hook("PreCompact", trigger="auto", token_count=159),
    "PostCompact": _hook("PostCompact", trigger="manual", estimated_token_count=156),
    "Notification": _hook(
        "Notification",
        sink="context",
        agent_id="main",
        notification_type="task.completed",
        title=SAID,
        body=SAID,
        severity="info",
        source_kind="background_task",
        source_id="agent-8grkyfve",
    ),
    "TurnStarted": _hook(
        "TurnStarted", turn_id=7, origin_kind="system_trigger", origin_name="subagent", prompt=SAID
    ),
    "UserPromptQueued": _hook("UserPromptQueued", prompt_id="msg_1", prompt=_PROMPT, queue_length=2),
    "TaskStarted": _hook(
        "TaskStarted",
        task_id="agent-8grkyfve",
        kind="agent",
        description=SAID,
        status="running",
        detached=True,
        started_at=1796055081748,
    ),
    "SessionHeartbeat": _hook("SessionHeartbeat", uptime_ms=60001),
    "unknown": _hook("BrandNewKimiHook", note=SAID),
}


def frame(kind: str, /, **payload: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "seq": 4,
        "epoch": "ep_1",
        "session_id": "session_1",
        "timestamp": "2026-11-30T14:56:43.506Z",
        "payload": {"type": kind, "agentId": "main", "sessionId": "session_1", **payload},
    }


_TASK = {
    "taskId": "bash-1",
    "description": SAID,
    "status": "completed",
    "kind": "process",
    "command": SAID,
    "pid": 15634,
    "exitCode": 0,
}
FRAMES: dict[str, dict[str, Any]] = {
    "turn_started": frame("turn.started", turnId=0, origin={"kind": "user"}, prompt=SAID),
    "turn_cron": frame("turn.started", turnId=1, origin={"kind": "cron_job"}),
    "turn_sub": {**frame("turn.started", turnId=0, agentId="agent-0", prompt=SAID)},
    "turn_completed": frame("turn.ended", turnId=0, reason="completed", durationMs=121),
    "turn_cancelled": frame("turn.ended", turnId=0, reason="cancelled", durationMs=1, interruptReason="user"),
    "turn_failed": frame(
        "turn.ended",
        turnId=0,
        reason="failed",
        error={"code": "provider.api_error", "message": SAID, "name": "APIStatusError", "cause": SAID},
    ),
    "tool_started": frame(
        "tool.call.started",
        turnId=0,
        toolCallId="call_1",
        name="Bash",
        args={"command": SAID},
        description=SAID,
        display={"command": SAID, "cwd": PLACE},
    ),
    "tool_result": frame("tool.result", turnId=0, toolCallId="call_1", output=SAID),
    "tool_failed": frame("tool.result", turnId=0, toolCallId="call_1", output=SAID, isError=True),
    "approval_requested": frame(
        "event.approval.requested",
        approval_id="approval_1",
        session_id="session_1",
        turn_id=0,
        tool_call_id="call_1",
        tool_name="Bash",
        action=f"Running: {SAID}",
        tool_input_display={"kind": "command", "command": SAID, "cwd": PLACE},
    ),
    "approval_approved": frame(
        "event.approval.resolved", approval_id="approval_1", decision="approved", selected_label=SAID
    ),
    "approval_rejected": frame(
        "event.approval.resolved", approval_id="approval_1", decision="rejected", feedback=SAID
    ),
    "approval_gone": frame("event.approval.resolved", approval_id="approval_1"),
    "question_requested": frame(
        "event.question.requested",
        question_id="question_1",
        questions=[
            {
                "id": "q_0",
                "question": SAID,
                "header": SAID,
                "options": [
                    {"id": "opt_0_0", "label": SAID, "description": SAID},
                    {"id": "opt_0_1", "label": "B"},
                ],
                "multi_select": True,
                "allow_other": True,
            },
            {"question": "Second?", "options": [{"label": "Y"}], "multi_select": False},
        ],
    ),
    "question_answered": frame("event.question.answered", question_id="question_1", answers={SAID: SAID}),
    "question_dismissed": frame("event.question.dismissed", question_id="question_1"),
    "subagent_spawned": frame(
        "subagent.spawned",
        subagentId="agent-0",
        subagentName="coder",
        parentToolCallId="call_1",
        description=SAID,
        runInBackground=True,
    ),
    "subagent_completed": frame(
        "subagent.completed",
        subagentId="agent-0",
        resultSummary=SAID,
        usage={"inputOther": 260, "output": 20, "inputCacheRead": 3, "inputCacheCreation": 1},
    ),
    "subagent_failed": frame("subagent.failed", subagentId="agent-0", error=SAID),
    "compaction_started": frame("compaction.started", trigger="manual", instruction=SAID),
    "compaction_completed": frame("compaction.completed", result={"summary": SAID, "tokensAfter": 302}),
    "task_started": frame("task.started", info={**_TASK, "status": "running"}),
    "task_terminated": frame("task.terminated", info=_TASK),
    "task_notified": frame("task.notified", title=SAID, body=SAID, notificationType="task.completed"),
    "error": frame("error", code="provider.api_error", message=SAID, name="APIStatusError"),
    "meta": frame("session.meta.updated", patch={"lastPrompt": SAID}),
    "work": frame("event.session.work_changed", busy=True, pending_interaction="none", main_turn_active=True),
    "spliced": frame("context.spliced", messages=[{"content": SAID}]),
    "unknown": frame("brand.newFrame!", note=SAID),
}

_SID = {"sessionId": "session_1"}
_CONTENT_BLOCK = [{"type": "content", "content": {"type": "text", "text": SAID}}]


def _update(kind: str, /, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return ("notification", "session/update", {**_SID, "update": {"sessionUpdate": kind, **fields}})


MOMENTS: dict[str, tuple[str, str, Any]] = {
    "prompt": ("request", "session/prompt", {**_SID, "prompt": _PROMPT}),
    "prompt_error": ("error", "session/prompt", {"code": -32600, "message": SAID, "data": {"x": SAID}}),
    "prompt_done": ("response", "session/prompt", {"stopReason": "end_turn"}),
    "permission": (
        "request",
        "session/request_permission",
        {
            **_SID,
            "options": [{"optionId": "approve_once", "name": SAID, "kind": "allow_once"}],
            "toolCall": {"toolCallId": "2:call_1", "title": SAID, "content": _CONTENT_BLOCK},
        },
    ),
    "permission_selected": (
        "response",
        "session/request_permission",
        {"outcome": {"outcome": "selected", "optionId": "approve_once"}},
    ),
    "permission_error": ("error", "session/request_permission", {"code": -32603, "message": SAID}),
    "form": (
        "request",
        "elicitation/create",
        {**_SID, "message": SAID, "requestedSchema": {"properties": {"q0": {"title": SAID}}}},
    ),
    "form_accepted": (
        "response",
        "elicitation/create",
        {"action": "accept", "content": {"q0": SAID, "n": 3}},
    ),
    "form_declined": ("response", "elicitation/create", {"action": "decline"}),
    "tool_call": _update(
        "tool_call",
        toolCallId="2:call_1",
        title="Bash",
        kind="execute",
        status="pending",
        content=_CONTENT_BLOCK,
        rawInput={"command": SAID},
        locations=[{"path": PLACE}],
    ),
    "tool_call_done": _update(
        "tool_call", toolCallId="2:call_1", title="Bash", status="completed", rawOutput=SAID
    ),
    "tool_running": _update(
        "tool_call_update",
        toolCallId="2:call_1",
        title="Bash",
        status="in_progress",
        rawInput={"command": SAID},
        content=_CONTENT_BLOCK,
    ),
    "tool_completed": _update(
        "tool_call_update", toolCallId="2:call_1", status="completed", rawOutput=SAID, content=_CONTENT_BLOCK
    ),
    "tool_failed": _update(
        "tool_call_update", toolCallId="2:call_1", status="failed", content=_CONTENT_BLOCK
    ),
    "plan": _update("plan", entries=[{"content": SAID, "priority": "high", "status": "in_progress"}]),
    "chunk": _update("agent_message_chunk", content={"type": "text", "text": SAID}),
    "thought": _update("agent_thought_chunk", content={"type": "text", "text": SAID}),
    "user_chunk": _update("user_message_chunk", content={"type": "text", "text": SAID}),
    "usage": _update("usage_update", used=140, size=262144),
    "mode": _update("current_mode_update", currentModeId="yolo"),
    "info": _update("session_info_update", title=SAID),
    "new": ("response", "session/new", {**_SID, "configOptions": [{"name": SAID}]}),
    "new_error": ("error", "session/new", {"code": -32000, "message": SAID}),
    "close": ("response", "session/close", {}),
    "read": ("request", "fs/read_text_file", {**_SID, "path": PLACE}),
    "read_done": ("response", "fs/read_text_file", {"content": SAID}),
    "initialize": (
        "request",
        "initialize",
        {"protocolVersion": 1, "clientInfo": {"name": "zed", "version": "1.2"}},
    ),
    "unknown": ("notification", "some/futureNotification", {"note": SAID}),
}
