"""`POST /frames/acp`: every line once, whoever sends it, however often, wherever it was cut off."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from handlers.engine import Outcome
from handlers.tokens import ALL_RIGHTS, Principal, token_digest
from state.errors import Unreachable
from tests.acp.post import HEADERS, JSON, Tee, body, post, send
from tests.app.replica import MovableClock, Replica, fresh_prefix, running
from tests.servers import AnyServer

T0 = 1_796_050_200_000
OWNER = Principal("testhost", ALL_RIGHTS, True)


async def told(replica: Replica, session: str | None = None) -> list[str]:
    """The types in the replay, shortened for the channel's own."""
    return [
        event["type"].replace("x.acp.", "x.")
        for event in (await replica.replay()).events
        if session is None or event["session"] == session
    ]


async def test_a_batch_becomes_events_of_the_agent_acp(redis_server: AnyServer) -> None:
    async with running(redis_server, clock=MovableClock(T0 + 5_000)) as replica:
        tee = Tee(at_ms=T0).turn(1, "s1")
        assert await post(replica, tee.lines) == {"c0": 2}
        started, finished = (await replica.replay()).events
    assert (started["type"], finished["type"]) == ("run.started", "run.finished")
    assert started["source"] == "aep://testhost/agent/acp/session/s1"
    assert (started["agent"], started["session"]) == ("acp", "s1")
    assert finished["run"] == started["run"]
    assert finished["data"]["duration_ms"] == 10
    assert datetime.fromisoformat(started["time"]).timestamp() * 1000 == T0


async def test_hooks_of_the_same_session_are_another_session(replica: Replica) -> None:
    await post(replica, Tee().turn(1, "s1").lines)
    await replica.hook("UserPromptSubmit", "s1", prompt="hi")
    events = (await replica.replay()).events
    assert Counter(event["agent"] for event in events) == {"acp": 2, "kimi-code": 1}
    assert len({event["source"] for event in events}) == 2
    started = [event["run"] for event in events if event["type"] == "run.started"]
    assert len(set(started)) == 2
    last = max(event["seq"] for event in events if event["agent"] == "acp")
    resumed = await replica.client.get(
        "/stream", params={"live": "0"}, headers={"Last-Event-ID": f"s1:0:{last}"}
    )
    assert "run.finished" not in resumed.text
    roster = await replica.service.router.roster(OWNER)
    accepts = {entry["agent"]: entry["control"]["accepts"] for entry in cast(list[JSON], roster)}
    assert accepts.keys() == {"acp", "kimi-code"}
    assert accepts["acp"] == []


async def test_lines_that_come_again_tell_nothing(replica: Replica) -> None:
    tee = Tee().turn(1, "s1")
    await post(replica, tee.lines)
    assert await post(replica, tee.lines) == {"c0": 2}
    tee.turn(2, "s1")
    await post(replica, tee.lines)
    assert await told(replica) == ["run.started", "run.finished"] * 2


async def test_joins_span_batches_and_replicas(redis_server: AnyServer) -> None:
    prefix = fresh_prefix()
    tee = Tee().turn(1, "s1").permission(0, "s1")
    tee.add("c2a", {"id": 0, "result": {"outcome": {"outcome": "cancelled"}}})
    async with (
        running(redis_server, redis_prefix=prefix) as one,
        running(redis_server, redis_prefix=prefix) as two,
    ):
        for number, line in enumerate(tee.lines):
            await post((one, two)[number % 2], [line])
        assert await told(one) == [
            "run.started",
            "run.finished",
            "attention.requested",
            "attention.resolved",
        ]


async def test_a_crash_after_some_sessions_is_completed(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = replica.service.engine
    apply = engine.apply

    async def fail(key: Any, moments: Any, **more: Any) -> Outcome:
        if key.session == "b":
            return Outcome(({},) * len(moments), "no")
        return await apply(key, moments, **more)

    tee = Tee()
    for number, session in enumerate("abc"):
        tee.turn(number, session)
    monkeypatch.setattr(engine, "apply", fail)
    assert (await send(replica, tee.lines)).status_code == 503
    monkeypatch.undo()
    assert await told(replica, "b") == []
    await post(replica, tee.lines)
    for session in "abc":
        assert await told(replica, session) == ["run.started", "run.finished"]


async def test_a_crash_before_the_cursor_moved_is_completed(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> bool:
        raise Unreachable("gone")

    tee = Tee().ask(1, "session/prompt", sessionId="s1", prompt=[])
    monkeypatch.setattr(replica.service.wires, "move", broken)
    assert (await send(replica, tee.lines)).status_code == 503
    monkeypatch.undo()
    # The tee goes on with a batch that is cut elsewhere.
    tee.answer(1, {"stopReason": "refusal"})
    await post(replica, tee.lines)
    assert await told(replica) == ["run.started", "run.failed"]


async def test_many_attempts_at_once_on_two_replicas(redis_server: AnyServer) -> None:
    prefix = fresh_prefix()
    tee = Tee()
    for number in range(20):
        tee.turn(number, f"s{number % 3}")
    async with (
        running(redis_server, redis_prefix=prefix) as one,
        running(redis_server, redis_prefix=prefix) as two,
    ):
        for start in range(0, len(tee.lines), 8):
            part = tee.lines[start : start + 8]
            await asyncio.gather(*(send((one, two)[number % 2], part) for number in range(6)))
            await post(one, part)
        counted = Counter(await told(one))
    assert counted == {"run.started": 20, "run.finished": 20}


async def test_batches_cut_anywhere_and_sent_again_tell_the_same(redis_server: AnyServer) -> None:
    tee = Tee(at_ms=T0)
    for number in range(12):
        tee.turn(number, f"s{number % 2}").permission(number, f"s{number % 2}")
        tee.add("c2a", {"id": number, "result": {"outcome": {"outcome": "selected", "optionId": "x"}}})
    expected: list[list[str]] | None = None
    for seed in range(4):
        source = random.Random(seed)
        async with running(redis_server, clock=MovableClock(T0 + 60_000)) as replica:
            at = 0
            while at < len(tee.lines):
                end = min(len(tee.lines), at + source.randint(1, 9))
                await post(replica, tee.lines[max(0, at - source.randint(0, 5)) : end])
                at = end
            found = [await told(replica, f"s{number}") for number in range(2)]
        assert expected is None or found == expected
        expected = found


async def test_the_end_closes_requests_and_no_run(replica: Replica) -> None:
    tee = (
        Tee()
        .ask(1, "session/prompt", sessionId="s1", prompt=[])
        .permission(0, "s1")
        .permission(1, "s2")
        .end()
    )
    await post(replica, tee.lines)
    assert await told(replica, "s1") == ["run.started", "attention.requested", "attention.resolved"]
    assert await told(replica, "s2") == ["attention.requested", "attention.resolved"]
    await post(replica, tee.lines)
    assert len(await told(replica)) == 5


async def test_what_belongs_to_no_session_is_told_once_too(replica: Replica) -> None:
    tee = Tee().ask(0, "initialize", protocolVersion=1).ask(1, "no/such", x=1)
    tee.add("a2c", {"id": 1, "error": {"code": -32601, "message": "no"}})
    tee.add("a2c", {"id": None, "error": {"code": -32700, "message": "no"}})
    for _ in range(2):
        await post(replica, tee.lines)
    assert await told(replica, "unknown") == [
        "x.initialize.event",
        "x.no.such",
        "x.no.such.error",
        "x.error.event",
    ]


async def test_emitters_keep_apart(redis_server: AnyServer, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "".join(f"{token_digest(f'secret-{name}')} {name} emit,watch\n" for name in ("ann", "bob"))
    )
    async with running(redis_server, tokens_file=str(tokens)) as replica:
        for name in ("ann", "bob"):
            response = await replica.client.post(
                "/frames/acp",
                content=body(Tee().turn(1, "s1").lines),
                headers={**HEADERS, "Authorization": f"Bearer secret-{name}"},
            )
            assert response.json() == {"cursors": {"c0": 2}}
        events = (await replica.replay(access_token="secret-ann")).events
    assert Counter(event["source"] for event in events).keys() >= {"aep://ann/agent/acp/session/s1"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"3",
        b'{"n":1}',
        b'{"n":0,"dir":"c2a","conn":"c","frame":{}}',
        b'{"n":true,"dir":"c2a","conn":"c","frame":{}}',
        b'{"n":1,"dir":"up","conn":"c","frame":{}}',
        b'{"n":1,"dir":"c2a","conn":"a:b","frame":{}}',
        b'{"n":1,"dir":"c2a","conn":"c","frame":[]}',
    ],
)
async def test_lines_that_are_none(replica: Replica, line: bytes) -> None:
    good = body(Tee().turn(1, "s1").lines)
    alone = await replica.client.post("/frames/acp", content=line, headers=HEADERS)
    assert alone.status_code == (400 if line else 200)
    beside = await replica.client.post("/frames/acp", content=line + b"\n" + good, headers=HEADERS)
    assert beside.json() == {"cursors": {"c0": 2}}


@pytest.mark.parametrize(
    "frame",
    [
        {},
        {"method": 3, "id": 1},
        {"method": "session/update", "params": None},
        {"method": "session/update", "params": {"sessionId": ["x"], "update": 3}},
        {"method": "session/prompt", "id": {"a": 1}, "params": {"sessionId": "\ud800", "prompt": {}}},
        {"method": "\ud800" * 400, "id": "\ud800", "params": {}},
        {"method": "m", "id": 1e300, "params": {"sessionId": "x" * 100_000}},
        {"method": "m", "id": 10**40, "params": {}},
        {"id": 1, "result": None},
        {"id": 1, "error": None},
        {"method": "initialize", "id": 1, "params": {"clientInfo": {"name": "\ud800", "version": 3}}},
    ],
)
async def test_odd_frames_are_taken(replica: Replica, frame: dict[str, Any]) -> None:
    lines = (
        Tee().add("c2a", frame).add("a2c", frame).ask(1, "session/new").answer(1, {"sessionId": "s"}).end()
    )
    await post(replica, lines.lines)
    assert "session.started" in await told(replica, "s")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Type": "application/json"}, 415), ({"Origin": "http://evil.example"}, 403)],
)
async def test_requests_that_are_refused(replica: Replica, headers: dict[str, str], status: int) -> None:
    response = await replica.client.post("/frames/acp", content=b"{}", headers={**HEADERS, **headers})
    assert response.status_code == status


async def test_the_memory_of_a_connection_is_bounded_and_goes(replica: Replica) -> None:
    tee = Tee()
    for number in range(700):
        tee.ask(number, "session/new" + "x" * 200, sessionId=f"{number}" + "ä" * 100)
    await post(replica, tee.lines)
    service = replica.service
    at = service.keys.wire("testhost", "c0")
    assert await service.client.call(at, "HSTRLEN", at, "v") <= 64 * 1024
    assert await service.client.call(at, "PTTL", at) > 6 * 86_400_000
    await post(replica, tee.end().lines[-1:])
    assert 0 < await service.client.call(at, "PTTL", at) <= 3_600_000


async def test_without_redis_the_tee_is_told_to_come_again() -> None:
    async with running("redis://127.0.0.1:9/0") as replica:
        assert (await send(replica, Tee().turn(1, "s1").lines)).status_code == 503
