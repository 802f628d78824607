"""The events of a turn as Kimi Code 2.1.0 sends them, about 1 KB each. SESSION and CALL stand for ids."""

from __future__ import annotations

from typing import Any

_TEXT = "Look at the failing test, find out which change broke it, and mend the code rather than the test. "


def conversation() -> list[dict[str, Any]]:
    """A prompt, three tool calls with their results, a stop."""
    common = {
        "session_id": "SESSION",
        "cwd": "/home/user/project",
        "client_type": "kimi_code_cli",
        "session_title": "Mend the failing test",
    }
    call = common | {"tool_name": "Bash", "tool_call_id": "CALL"}
    command = {"command": "grep -rn 'def test_' tests | head -50; " + "echo a line of a script; " * 20}
    turn: list[dict[str, Any]] = [
        common
        | {
            "hook_event_name": "UserPromptSubmit",
            "prompt": [{"type": "text", "text": _TEXT * 8}],
            "is_steer": False,
        }
    ]
    for _ in range(3):
        turn.append(call | {"hook_event_name": "PreToolUse", "tool_input": command | {"timeout": 60}})
        turn.append(
            call
            | {
                "hook_event_name": "PostToolUse",
                "tool_input": command,
                "tool_output": "tests/test_parser.py:12:def test_empty():\n" * 8,
            }
        )
    turn.append(common | {"hook_event_name": "Stop", "stop_hook_active": False})
    return turn


def payload(size: int, session: str = "shim") -> bytes:
    """One event of about `size` bytes."""
    head = b'{"hook_event_name":"Notification","session_id":"%s","cwd":"/p","title":"' % session.encode()
    return head + b"x" * (size - len(head) - 2) + b'"}'
