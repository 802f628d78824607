"""The two things that a link does at a server, and how their outcomes are told apart from those of others."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from deploy.web.errors import LinkError, RestError
from deploy.web.rest import Rest

JSON = dict[str, Any]

GONE = frozenset({40902, 40404, 40401, 40402})
"""What the vendor answers about something that is no longer there to be decided (kimi-code 2.1.0)."""
SECONDS = 6.0
ABORT = "abort"


def subject(write: JSON) -> str:
    """What a write is about: an approval's id, or the main agent's turn."""
    return ABORT if write.get("do") == "abort" else f"approval {write.get('approval')}"


def announces(raw: bytes) -> str | None:
    """The subject whose outcome a frame tells; None for any other frame."""
    if b'"event.approval.resolved"' not in raw and b'"turn.ended"' not in raw:
        return None
    frame = orjson.loads(raw)
    payload = frame.get("payload")
    if not isinstance(payload, dict):
        return None
    if frame.get("type") == "event.approval.resolved":
        return f"approval {payload.get('approval_id')}"
    return ABORT if frame.get("type") == "turn.ended" and payload.get("agentId") == "main" else None


async def carry_out(rest: Rest, write: JSON) -> tuple[str, int]:
    """Do it. What came of it in a word, and the vendor's code where that was the reason.

    `done`, `gone` (decided before), `refused`, `unauthorized`, `away` (it never got there), or `unknown`.
    """
    session = str(write.get("session"))
    try:
        async with asyncio.timeout(SECONDS):
            if write.get("do") == "abort":
                done = await rest.abort(session)
            else:
                approval, decision, words = (write.get(k) for k in ("approval", "decision", "feedback"))
                feedback = words if isinstance(words, str) else None
                done = await rest.decide(session, str(approval), str(decision), feedback)
    except RestError as error:
        if error.code in GONE:
            return "gone", error.code
        if error.code:
            return "refused", error.code
        return ("unknown" if error.sent else "away"), 0
    except LinkError:
        return "unauthorized", 0
    except TimeoutError:
        return "unknown", 0
    return ("done" if done else "gone"), 0
