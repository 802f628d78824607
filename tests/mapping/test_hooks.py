"""The hook channel: how payloads that the fixture does not pin come out."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Draft
from tests.mapping.payloads import HOOKS
from tests.mapping.support import posture


def draft(name: str, level: Capture = Capture.METADATA, **changed: Any) -> Draft:
    payload = {**HOOKS[name], **changed}
    return map_hook({k: v for k, v in payload.items() if v is not ...}, posture(level)).drafts[0]


@pytest.mark.parametrize("session", [..., None, "", 7, ["s"], {"id": "s"}, True])
def test_a_session_that_is_no_string_is_unknown(session: Any) -> None:
    payload = {k: v for k, v in {**HOOKS["Stop"], "session_id": session}.items() if v is not ...}
    assert map_hook(payload, Posture()).session == "unknown"


@pytest.mark.parametrize("session", ["session_1", "a b\n:'\"\\", "ü" * 10_000])
def test_a_session_is_the_vendors_verbatim(session: str) -> None:
    assert map_hook({**HOOKS["Stop"], "session_id": session}, Posture()).session == session


@pytest.mark.parametrize(
    ("reason", "ended"),
    [
        ("exit", "normal"),
        ("archive", "normal"),
        ("killed", "killed"),
        ("later", None),
        (..., None),
        (3, None),
    ],
)
def test_session_end_reasons(reason: Any, ended: str | None) -> None:
    assert draft("SessionEnd", reason=reason).data == ({} if ended is None else {"reason": ended})


@pytest.mark.parametrize(
    ("prompt", "joined"),
    [
        ("plain", "plain"),
        ("", None),
        ([], None),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": ""}, {"type": "text"}, {"type": "text", "text": 3}, "loose", None], None),
        ({"type": "text", "text": "a"}, None),
        (None, None),
        (..., None),
    ],
)
def test_prompts(prompt: Any, joined: str | None) -> None:
    data = draft("UserPromptSubmit", Capture.FULL, prompt=prompt).data
    assert data == {"trigger": "user"} | ({} if joined is None else {"prompt": joined})


@pytest.mark.parametrize("level", list(Capture))
def test_media_of_a_prompt_is_not_copied(level: Capture) -> None:
    media = "QUJD" * 5_000_000
    payload = {
        **HOOKS["UserPromptSubmit"],
        "prompt": [
            {"type": "text", "text": "see this"},
            {"type": "image_url", "imageUrl": {"url": media}},
            {"type": "text", "text": "and that", "extra": media},
        ],
    }
    tracemalloc.start()
    try:
        map_hook(payload, posture(level))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"name": "ToolError", "code": "internal"}, "ToolError"),
        ({"code": "internal"}, "internal"),
        ({"code": 13}, "13"),
        ({"name": "a whole sentence", "code": "internal"}, "internal"),
        ({}, None),
        ("it broke", None),
        (..., None),
    ],
)
def test_the_type_of_a_tool_error(error: Any, kind: str | None) -> None:
    assert draft("PostToolUseFailure", error=error).data["error"] == ({} if kind is None else {"type": kind})


def test_a_tool_error_of_plain_text_is_a_message() -> None:
    data = draft("PostToolUseFailure", Capture.REDACTED, error="it broke").data
    assert data["error"] == {"message": "it broke"}


@pytest.mark.parametrize("kind", [..., None, 3, "", "some words"])
def test_a_turn_that_failed_without_a_type(kind: Any) -> None:
    assert draft("StopFailure", error_type=kind).data == {"reason": "error"}
    shown = draft("StopFailure", Capture.REDACTED, error_type=kind, error_message="boom").data
    assert shown == {"reason": "error", "error": {"message": "boom"}}


@pytest.mark.parametrize(
    ("display", "action", "prompt"),
    [
        ("Run it?", "execute", "Run it?"),
        ({"kind": "command", "cwd": "/p"}, "Running: ls", "Running: ls"),
        (..., "Running: ls", "Running: ls"),
        ("", "Running: ls", "Running: ls"),
        ({"cwd": "/p"}, ..., "kimi-code requests permission: Bash"),
        (7, None, "kimi-code requests permission: Bash"),
    ],
)
def test_what_a_permission_request_asks(display: Any, action: Any, prompt: str) -> None:
    asked = draft("PermissionRequest", Capture.REDACTED, display=display, action=action)
    assert asked.data == {"kind": "permission", "prompt": prompt, "respond_via": ["oob"]}


def test_a_permission_request_without_a_tool() -> None:
    asked = draft("PermissionRequest", tool_name=None)
    assert (asked.subject, asked.data["prompt"]) == (None, "kimi-code requests permission")


@pytest.mark.parametrize("decision", ["error", "approved_forever", None, 1, ["approved"], ...])
def test_a_decision_that_answers_nothing_degrades(decision: Any) -> None:
    fallen = draft("PermissionResult_approved", Capture.FULL, decision=decision)
    assert (fallen.type, fallen.data) == ("x.kimi-code.session.permission_result", {})


@pytest.mark.parametrize(("label", "shown"), [("Approve once", True), ("Option A: rewrite all of it", False)])
def test_a_label_at_metadata_is_the_vendors_own_word(label: str, shown: bool) -> None:
    assert ("label" in draft("PermissionResult_approved", selected_label=label).data) is shown


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse", "PostToolUseFailure"])
@pytest.mark.parametrize("tool", [..., None, "", 4, ["Bash"]])
def test_a_tool_event_without_a_tool_degrades(name: str, tool: Any) -> None:
    fallen = draft(name, tool_name=tool)
    assert fallen.type.startswith("x.kimi-code.session.")
    assert fallen.data == {}


def test_a_tool_call_without_an_id_is_unpaired() -> None:
    assert draft("PreToolUse", tool_call_id=3).data["tool"] == {"name": "Bash"}


def test_a_missing_argument_has_no_digest() -> None:
    assert draft("PreToolUse", tool_input=None).data == {"tool": {"name": "Bash", "call_id": "call_1"}}


@pytest.mark.parametrize("args", [[1], "text", 3])
def test_arguments_of_another_kind_have_a_digest_only(args: Any) -> None:
    assert set(draft("PreToolUse", Capture.FULL, tool_input=args).data) == {"tool", "args_digest"}


def test_an_interrupt_for_another_reason_names_nobody() -> None:
    assert draft("Interrupt", reason="aborted").data == {}


@pytest.mark.parametrize(
    ("event", "typed"),
    [
        ("BrandNewKimiHook", "x.kimi-code.session.brand_new_kimi_hook"),
        ("", "x.kimi-code.session.unknown"),
        ("ünïcode / hook", None),
        ("x" * 10_000, None),
        ("\ud800", None),
        (None, "x.kimi-code.session.unknown"),
        (["Stop"], "x.kimi-code.session.unknown"),
    ],
)
def test_unknown_events_degrade_to_a_legal_type(event: Any, typed: str | None) -> None:
    fallen = draft("Stop", Capture.FULL, hook_event_name=event)
    assert fallen.data == {}
    assert typed is None or fallen.type == typed


def test_every_event_has_a_fallback_of_its_own_name() -> None:
    moment = map_hook(HOOKS["SessionEnd"], Posture())
    assert moment.fallback.type == "x.kimi-code.session.session_end"
    assert moment.drafts[0] != moment.fallback


@pytest.mark.parametrize("value", [-1, 1.5, True, "9", None, [], float("inf"), float("nan"), 2**60])
def test_a_count_is_a_whole_number(value: Any) -> None:
    assert draft("PostCompact", estimated_token_count=value).data == {"trigger": "manual"}


def test_the_newer_events() -> None:
    assert draft("TurnStarted").data == {"origin_kind": "system_trigger", "origin_name": "subagent"}
    assert draft("UserPromptQueued").data == {"prompt_id": "msg_1", "queue_length": 2}
    assert draft("TaskStarted").data == {
        "task_id": "agent-8grkyfve",
        "kind": "agent",
        "status": "running",
        "detached": True,
        "started_at": 1796055081748,
    }
    assert draft("SessionHeartbeat").data == {"uptime_ms": 60001}


def test_facts() -> None:
    facts = map_hook(HOOKS["PermissionResult_rejected"], Posture()).facts
    assert facts == {
        "event": "PermissionResult",
        "has_is_steer": False,
        "tool_name": "Bash",
        "tool_call_id": "call_1",
        "turn_id": 7,
        "agent_id": "main",
        "request_id": "approval_1",
        "client_type": "kimi_code_cli",
        "decision": "rejected",
    }


def test_the_older_engine_shows_in_what_is_missing() -> None:
    old = {k: v for k, v in HOOKS["UserPromptSubmit"].items() if k not in ("client_type", "is_steer")}
    assert map_hook(old, Posture()).facts["engine"] == "v1"
    assert "engine" not in map_hook({**old, "is_steer": False}, Posture()).facts
    assert "engine" not in map_hook({**old, "client_type": "kimi_code_cli"}, Posture()).facts


@pytest.mark.parametrize(("flag", "background"), [(True, True), (False, None), ("true", None), (None, None)])
def test_a_background_spawn_is_a_fact(flag: Any, background: bool | None) -> None:
    payload = {**HOOKS["PreToolUse"], "tool_name": "Agent", "tool_input": {"run_in_background": flag}}
    assert map_hook(payload, Posture()).facts.get("background") is background
