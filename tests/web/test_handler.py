"""`POST /frames/web`: each frame once, whoever sends it, however often; and what the answer tells."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.projection import StateProjection

from tests.app.replica import Replica, fresh_prefix, running
from tests.servers import AnyServer
from tests.web.captures import VERSIONS, heard, turns
from tests.web.frames import JSON, Journal, body
from tests.web.stage import EPOCH, SESSION

HEADERS = {"Content-Type": "application/x-ndjson"}


async def post(replica: Replica, lines: Any, **query: Any) -> JSON:
    query.setdefault("mode", "primary")
    response = await replica.client.post("/frames/web", content=body(lines), headers=HEADERS, params=query)
    assert response.status_code == 200, response.text
    answer: JSON = response.json()
    return answer


async def types(replica: Replica) -> list[str]:
    return [event["type"] for event in (await replica.replay()).events]


def _stands(seq: int, epoch: str = EPOCH) -> dict[str, object]:
    return {"epoch": epoch, "seq": seq, "stamp": f"2026-11-30T14:00:{seq:02d}.000Z"}


async def test_a_batch_becomes_events_and_moves_the_cursor(replica: Replica) -> None:
    journal = Journal()
    journal.turn(0, calls=["call_1"])
    answer = await post(replica, journal)
    assert answer["cursors"] == {SESSION: _stands(4)}
    events = (await replica.replay()).events
    assert [e["type"] for e in events] == [
        "run.started",
        "tool.requested",
        "tool.completed",
        "run.finished",
    ]
    assert {e["session"] for e in events} == {SESSION}
    assert {e["source"] for e in events} == {f"aep://testhost/agent/kimi-code/session/{SESSION}"}
    assert events[0]["time"] == "2026-11-30T14:00:01.000Z"
    assert events[2]["data"]["tool"] == {"name": "Bash", "call_id": "call_1"}
    assert events[3]["data"]["duration_ms"] == 5_000


async def test_a_batch_that_comes_again_tells_nothing(replica: Replica) -> None:
    journal = Journal()
    journal.turn(0)
    first = await post(replica, journal)
    journal.turn(1)
    again = await post(replica, journal)
    assert first["cursors"][SESSION]["seq"] == 2
    assert again["cursors"][SESSION]["seq"] == 4
    assert await types(replica) == ["run.started", "run.finished"] * 2


async def test_an_empty_batch_tells_where_every_session_stands(replica: Replica) -> None:
    assert (await post(replica, []))["cursors"] == {}
    one, two = Journal("session_a"), Journal("session_b", "ep_2")
    one.turn(0)
    two.turn(0)
    await post(replica, [*one, *two])
    await replica.hook("SessionStart", "session_of_hooks", source="startup")
    assert (await post(replica, []))["cursors"] == {
        "session_a": _stands(2),
        "session_b": _stands(2, "ep_2"),
    }
    wanted = {"link": "sessions", "ids": ["session_b", "session_c"]}
    assert set((await post(replica, [wanted]))["cursors"]) == {"session_b"}


async def test_echoes_and_odd_frames_move_the_cursor_too(replica: Replica) -> None:
    journal = Journal()
    journal.add("permission.approval.requested", id="approval_1")
    journal.add("some/new.Frame type")
    answer = await post(replica, journal)
    assert answer["cursors"][SESSION]["seq"] == 2
    (event,) = (await replica.replay()).events
    assert event["type"].startswith("x.kimi-code.web.some.")


async def test_global_frames_have_a_stream_of_their_own(replica: Replica) -> None:
    journal = Journal()
    journal.turn(0)
    archived = {
        "type": "event.session.archived",
        "seq": 1,
        "epoch": "ep_global",
        "session_id": "__global__",
        "payload": {"sessionId": SESSION},
    }
    answer = await post(replica, [*journal, archived])
    again = await post(replica, [archived])
    assert answer["cursors"] == again["cursors"] == {SESSION: _stands(2)}
    assert (await types(replica)).count("x.kimi-code.web.event.session.archived") == 1


async def test_volatile_frames_are_nothing(replica: Replica) -> None:
    journal = Journal()
    frame = {**journal.add("assistant.delta", delta="secret words"), "volatile": True}
    answer = await post(replica, [frame])
    assert answer["cursors"] == {}
    assert await types(replica) == []


async def test_garbage_stops_nothing(replica: Replica) -> None:
    journal = Journal()
    journal.turn(0)
    lines = b"\xff\xfe{\n[1,2]\nnull\n{}\n" + b"[" * 5_000 + b"\n" + body(journal) + b'{"link":"what"}\n\n'
    response = await replica.client.post("/frames/web?mode=primary", content=lines, headers=HEADERS)
    assert response.status_code == 200
    assert response.json()["skipped"] == 5
    assert await types(replica) == ["run.started", "run.finished"]


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("mode=both", HEADERS, 400),
        ("wait_ms=soon", HEADERS, 400),
        ("link=no-such-name", HEADERS, 400),
        ("", {"Content-Type": "application/json"}, 415),
        ("", {**HEADERS, "Origin": "http://elsewhere.example"}, 403),
    ],
)
async def test_what_is_refused(replica: Replica, query: str, headers: Any, status: int) -> None:
    response = await replica.client.post(f"/frames/web?{query}", content=b"", headers=headers)
    assert response.status_code == status


async def test_a_link_needs_the_right_to_emit(redis_server: AnyServer) -> None:
    async with running(redis_server, token="a-token-of-the-service") as replica:
        refused = await replica.client.post("/frames/web", content=b"", headers=HEADERS)
        assert refused.status_code == 401
        allowed = {**HEADERS, "Authorization": "Bearer a-token-of-the-service"}
        assert (await replica.client.post("/frames/web", content=b"", headers=allowed)).status_code == 200


async def test_the_mode_is_the_services_unless_the_link_says_it(redis_server: AnyServer) -> None:
    journal = Journal()
    journal.turn(0)
    async with running(redis_server) as replica:
        response = await replica.client.post("/frames/web", content=body(journal), headers=HEADERS)
        assert response.json()["mode"] == "companion"
        assert await types(replica) == ["x.kimi-code.web.turn.started", "x.kimi-code.web.turn.ended"]


async def test_the_same_frames_through_two_replicas_at_once(redis_server: AnyServer) -> None:
    """A link whose request timed out sends it again to another replica while the first is still at it."""
    prefix = fresh_prefix()
    journal = Journal()
    for number in range(30):
        journal.turn(number, calls=["a", "b"])
    async with contextlib.AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(running(redis_server, redis_prefix=prefix)) for _ in range(2)
        ]
        parts: list[Sequence[JSON]] = [journal.frames[: 20 * (n + 1)] for n in range(9)]
        await asyncio.gather(*(post(replica, part) for part in parts for replica in replicas))
        events = (await replicas[0].replay()).events
    counted = [event["type"] for event in events]
    assert counted.count("run.started") == counted.count("run.finished") == 30
    assert counted.count("tool.requested") == counted.count("tool.completed") == 60
    projection = StateProjection()
    for event in events:
        projection.apply(event)
    assert projection.state()["violations"] == []


async def test_a_poll_is_held_back_and_let_go(replica: Replica) -> None:
    waiting = asyncio.create_task(post(replica, [], wait_ms=20_000, link="abc"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    replica.service.drain()
    async with asyncio.timeout(10):
        await waiting
    async with asyncio.timeout(10):
        await post(replica, [], wait_ms=100, link="abc")


async def test_hooks_and_companion_share_one_session(replica: Replica) -> None:
    await replica.hook("SessionStart", SESSION, source="startup")
    await replica.hook("UserPromptSubmit", SESSION, prompt="hello", is_steer=False)
    journal = Journal()
    journal.add("turn.started", turnId=0, origin={"kind": "user"})
    await post(replica, journal, mode="companion")
    await replica.hook("Stop", SESSION, stop_hook_active=False)
    journal.add("turn.ended", turnId=0, reason="completed")
    await post(replica, journal, mode="companion")
    events = (await replica.replay()).events
    assert [e["type"] for e in events if not e["type"].startswith("x.")] == [
        "session.started",
        "run.started",
        "run.finished",
    ]
    seen = next(e for e in events if e["type"] == "x.kimi-code.web.turn.started")
    assert seen["run"] == next(e for e in events if e["type"] == "run.started")["run"]
    assert [e["seq"] for e in events] == sorted({e["seq"] for e in events})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 200])
async def test_a_whole_capture_in_batches(
    redis_server: AnyServer, oracle_dir: Path, version: str, size: int
) -> None:
    frames = heard(oracle_dir, version)
    async with running(redis_server, web_mode="primary") as replica:
        if size == 1:
            frames = frames[:60]
        for start in range(0, len(frames), size):
            await post(replica, [one.frame for one in frames[start : start + size]])
        events = (await replica.replay()).events
    begun = [e["run"] for e in events if e["type"] == "run.started"]
    ends = {
        e["run"]: e["type"] for e in events if e["type"] in ("run.finished", "run.failed", "run.cancelled")
    }
    assert [ends.get(run) for run in begun] == [turn.end for turn in turns(frames)]
    projection = StateProjection()
    for event in events:
        projection.apply(event)
    assert projection.state()["violations"] == []
