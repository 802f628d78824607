"""Every captured conversation with a shipped agent, through the real app and a real Redis.

What comes out is valid against the schemas, without a violation for the SDK's projection, never above its
capture level, and has one run for each prompt with the end that the wire stated.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.mapping.acp_joins import Joins
from tests.acp.post import post
from tests.app.replica import Event, MovableClock, running
from tests.app.test_oracle import Schemas, check, schemas
from tests.oracle import acp
from tests.servers import AnyServer

__all__ = ["schemas"]

TERMINALS = {"run.finished", "run.failed", "run.cancelled"}
BUSY = -32600


def ended(event: Event) -> str | int | None:
    """What an event says became of a turn, in the wire's words."""
    data = event["data"]
    if event["type"] == "run.finished":
        return str(data["stop_reason"])
    if event["type"] == "run.cancelled":
        return "cancelled" if data.get("by") == "user" else None
    return int(data["error"]["type"]) if "error" in data else str(data["reason"])


def runs(events: list[Event]) -> list[acp.Turn]:
    """The runs that are told, in the order of their beginnings."""
    ends = {event["run"]: event for event in events if event["type"] in TERMINALS}
    found = []
    for event in events:
        if event["type"] == "run.started":
            at = round(datetime.fromisoformat(event["time"]).timestamp() * 1000)
            found.append(acp.Turn(event["session"], at, ended(ends[event["run"]])))
    return sorted(found, key=lambda turn: turn.asked_ms)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 512])
@pytest.mark.parametrize("capture", [Capture.METADATA, Capture.FULL])
async def test_every_conversation(
    redis_server: AnyServer, oracle_dir: Path, schemas: Schemas, capture: Capture, size: int
) -> None:
    attention = max(capture, Capture.REDACTED, key=lambda level: level.rank)
    for captured in acp.load(oracle_dir):
        last = max(line["t"] for lines in captured.lines.values() for line in lines)
        async with running(
            redis_server,
            clock=MovableClock(last),
            capture=capture,
            capture_attention=attention,
            acp_deltas=capture is Capture.FULL,
        ) as replica:
            for lines in captured.lines.values():
                for start in range(0, len(lines), size):
                    await post(replica, lines[start : start + size])
            events = (await replica.replay()).events
        check(events, schemas, {"attention": attention, "other": capture})
        expected = sorted(
            (turn for turn in captured.turns() if turn.stop != BUSY), key=lambda turn: turn.asked_ms
        )
        assert runs(events) == expected
        assert len([event for event in events if event["type"] in TERMINALS]) == len(expected)
        _pairs(events)
        _sessions(captured, events)
        print(
            f"\n{captured.version}: {len(captured.scenarios)} scenarios,",
            f"{len(events)} events, {len(expected)} runs",
        )


def _pairs(events: list[Event]) -> None:
    """Each call and each request has one end, which names it; a name that is told stays the same."""
    begun = {e["id"]: e for e in events if e["type"] in ("tool.requested", "attention.requested")}
    ends = Counter(
        e["cause"] for e in events if e["type"] in ("tool.completed", "tool.failed", "attention.resolved")
    )
    assert ends == dict.fromkeys(begun, 1)
    for event in events:
        if event["type"] in ("tool.completed", "tool.failed"):
            assert event["data"]["tool"] == begun[event["cause"]]["data"]["tool"]


def _sessions(captured: acp.Capture, events: list[Event]) -> None:
    """Sessions begin when the wire says so, and end where it was closed."""
    counts = Counter(event["type"] for event in events)
    assert counts["session.ended"] == (1 if captured.version == "2.1.0" else 0)
    started = [event for event in events if event["type"] == "session.started"]
    # The first conversation of each capture has an editor without a name.
    assert {event["data"]["client"]["name"] for event in started} - {"acp"} == {"oracle"}
    assert not any(event["type"].endswith("user.message.chunk") for event in events)


def test_history_of_a_loaded_session_is_not_told(oracle_dir: Path) -> None:
    """Only 2.1.0 replays; what it replays is swallowed even where message chunks are asked for."""
    told, lines = 0, 0
    posture = Posture(capture=Capture.REDACTED, acp_deltas=True)
    for captured in acp.load(oracle_dir):
        for link, each in captured.lines.items():
            joins = Joins()
            for line in each:
                update = line["frame"].get("params", {}).get("update", {}) if line["dir"] == "a2c" else {}
                moments = joins.take(line["dir"], line["frame"], link, posture)
                if update.get("sessionUpdate") == "user_message_chunk":
                    lines += 1
                    told += len(moments)
    assert lines > 0
    assert told == 0
