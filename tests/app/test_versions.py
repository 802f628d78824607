"""Rolling upgrades: a state of another schema is neither misread nor overwritten, and costs no event."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from handlers.lifecycle.reducer import Tick
from handlers.lifecycle.state import SCHEMA
from state.keys import SessionKey
from tests.app.replica import Replica, running
from tests.servers import AnyServer

KEY = SessionKey("testhost", "s1")
NEWER = json.dumps([SCHEMA + 1, {"what": "we cannot know"}]).encode()


async def write(replica: Replica, state: bytes) -> None:
    """Put `state` where the session's is, as a replica of another version would."""
    service = replica.service
    known = await service.sessions.load(KEY)
    await service.sessions.commit(
        KEY,
        expected=known.version,
        commit_id=service.sessions.commit_id(),
        state=state,
        events=[],
        now_ms=service.clock.now_ms(),
        due_ms=None,
    )


async def stored(replica: Replica) -> bytes | None:
    return (await replica.service.sessions.load(KEY)).state


async def test_a_newer_state_is_kept_and_passed_by(replica: Replica) -> None:
    await replica.hook("UserPromptSubmit", prompt="hi")
    await write(replica, NEWER)
    for event in ("PreToolUse", "PostToolUse", "Stop", "SessionEnd"):
        response = await replica.hook(event, tool_name="Bash", tool_call_id="c1")
        assert (response.headers["aep-stored"], response.json()) == ("yes", {})
    assert await stored(replica) == NEWER
    events = (await replica.replay()).events
    assert [event["type"] for event in events[1:]] == [
        "x.kimi-code.session.pre_tool_use",
        "x.kimi-code.session.post_tool_use",
        "x.kimi-code.session.stop",
        "x.kimi-code.session.session_end",
    ]
    positions = [event["seq"] for event in events]
    assert positions == sorted(set(positions))
    assert replica.service.counters["states.newer"] == 4
    assert replica.service.problem() is None


async def test_what_needs_a_newer_state_is_left_to_those_who_can_read_it(replica: Replica) -> None:
    await replica.hook("Stop")
    await write(replica, NEWER)
    service = replica.service
    deadline = service.clock.steady() + 10
    both = await asyncio.gather(
        *(
            service.engine.submit(KEY, Tick(), at_ms=service.clock.now_ms(), deadline=deadline)
            for _ in range(3)
        ),
        replica.hook("Notification", body="x"),
    )
    assert [outcome.stored for outcome in both[:3]] == ["no"] * 3
    assert both[3].headers["aep-stored"] == "yes"
    line = {
        "type": "turn.started",
        "session_id": "s1",
        "seq": 1,
        "epoch": "e",
        "timestamp": "2026-11-30T00:00:00Z",
        "payload": {"turnId": 0, "agentId": "main"},
    }
    answer = await replica.client.post(
        "/frames/web", content=json.dumps(line), headers={"content-type": "application/x-ndjson"}
    )
    assert answer.status_code == 503, "a link sends it again, to another replica"
    assert answer.headers["aep-stored"] == "unknown"
    assert await stored(replica) == NEWER
    # Someone who can read it is asked to look soon.
    shard = service.keys.shard_of(KEY)
    assert await service.sessions.due(shard, service.clock.now_ms() + 5_000) == [KEY]


async def test_an_unanswered_ask_of_a_newer_state_holds_nobody(redis_server: AnyServer) -> None:
    async with running(
        redis_server, control=True, token="correct-horse", headers={"authorization": "Bearer correct-horse"}
    ) as replica:
        await replica.hook("UserPromptSubmit", prompt="hi")
        await write(replica, NEWER)
        async with asyncio.timeout(20):
            response = await replica.hook("PreToolUse", tool_name="Bash", tool_call_id="c", tool_input={})
        assert response.json() == {}
        assert await stored(replica) == NEWER


@pytest.mark.parametrize("old", [b"[0,17]", b"\x00 no state", b"{}", b'[%d,"x"]' % SCHEMA])
@pytest.mark.parametrize("ended", [False, True])
async def test_an_older_or_damaged_state_begins_anew(replica: Replica, old: bytes, ended: bool) -> None:
    await replica.hook("SessionStart", source="startup")
    if ended:
        await replica.hook("SessionEnd", reason="exit")
    before = [event["seq"] for event in (await replica.replay()).events]
    await write(replica, old)
    replica.service.engine.forget()
    assert (await replica.hook("SessionEnd", reason="exit")).headers["aep-stored"] == "yes"
    events: list[dict[str, Any]] = (await replica.replay()).events
    assert [event["seq"] for event in events][: len(before)] == before
    assert events[-1]["seq"] > before[-1]
    # It ends once, whatever became of the state.
    assert sum(event["type"] == "session.ended" for event in events) == 1
    assert replica.service.counters["states.unreadable"] == 1
