"""The link before a server that behaves, and before one that does not."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aep_sdk.projection import StateProjection

from deploy.web import outbox, watch
from deploy.web.outbox import Outbox
from deploy.web.rest import Rest
from handlers import frames_web
from handlers.lifecycle import cursors
from handlers.lifecycle.orders import Claim
from handlers.lifecycle.state import SessionState
from state.keys import SessionKey
from tests.app.replica import Replica, running, until
from tests.servers import AnyServer
from tests.web.captures import VERSIONS, heard, session, turns
from tests.web.fake import SECRET, Fake, faking
from tests.web.frames import Journal
from tests.web.linked import linking_to, quicken, told

RUN_ENDS = ("run.finished", "run.failed", "run.cancelled")
WAKING = ("/snapshot", "/approvals", ":abort", "/questions", "/status", "/prompts", "/messages")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def sound(events: list[dict[str, Any]]) -> None:
    projection = StateProjection()
    for event in events:
        projection.apply(event)
    assert projection.state()["violations"] == []
    assert len({event["id"] for event in events}) == len(events)


def core(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["type"] for event in events if not event["type"].startswith("x."))


async def test_sessions_that_were_there_and_sessions_that_come(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        first = fake.session("session_1")
        first.turn(0, calls=["a"])
        await told(replica, "run.finished")
        second = fake.session("session_2")
        second.turn(0)
        await told(replica, *["run.finished"] * 2)
        await fake.send(first, *first.turn(1))
        events = await told(replica, *["run.finished"] * 3)
        assert link.report()["ok"] is True
        assert link.report()["servers"][0]["sessions"] == 2
    sound(events)
    assert core(events) == {"run.started": 3, "run.finished": 3, "tool.requested": 1, "tool.completed": 1}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["companion", "primary"])
async def test_a_whole_capture_through_link_handler_and_redis(
    replica: Replica, tmp_path: Path, oracle_dir: Path, version: str, mode: str
) -> None:
    """Half of it is there when the link comes, half happens while it watches."""
    frames = [one.frame for one in heard(oracle_dir, version) if "seq" in one.frame]
    name = session(heard(oracle_dir, version))
    durable = [one for one in frames if not one.get("volatile") and one["session_id"] == name]
    half = frames.index(durable[len(durable) // 2])
    async with faking(tmp_path) as fake:
        journal = fake.session(name, epoch=durable[0]["epoch"], seq=durable[0]["seq"] - 1)
        # The capture's first connection missed the first two numbers of the newer version.
        missing = [{**durable[0], "seq": n, "type": "filler"} for n in range(1, durable[0]["seq"])]
        gone = [{**durable[0], "seq": n, "type": "filler"} for n in _between(durable)]
        journal.frames = sorted([*missing, *gone, *durable], key=lambda one: int(one["seq"]))
        whole, journal.frames = journal.frames, [f for f in journal.frames if f["seq"] <= frames[half]["seq"]]
        journal.seq = journal.frames[-1]["seq"]
        async with linking_to(replica, tmp_path, mode=mode) as link:
            await until(lambda: link.report()["frames"]["delivered"] > 0)
            for one in frames[half + 1 :]:
                if one["session_id"] == name and not one.get("volatile"):
                    late = [f for f in whole if journal.seq < f["seq"] < one["seq"]]
                    journal.frames += [*late, one]
                    journal.seq = one["seq"]
                    await fake.send(journal, *late)
                await fake.everybody(json.dumps(one))
            last = durable[-1]["seq"]
            key = SessionKey("testhost", name)

            async def stands() -> bool:
                record = await replica.service.sessions.load(key)
                state = None if record.state is None else SessionState.decode(record.state)
                return state is not None and (cursors.latest(state, "web") or ("", 0))[1] == last

            async with asyncio.timeout(20):
                while not await stands():
                    await asyncio.sleep(0.05)
            assert link.report()["servers"][0]["gaps"] == 0
    events = (await replica.replay()).events
    sound(events)
    if mode == "companion":
        assert core(events) == {}
        return
    begun = [e["run"] for e in events if e["type"] == "run.started"]
    ends = {e["run"]: e["type"] for e in events if e["type"] in RUN_ENDS}
    assert [ends.get(run) for run in begun] == [turn.end for turn in turns(heard(oracle_dir, version))]


def _between(durable: list[dict[str, Any]]) -> list[int]:
    numbers = {one["seq"] for one in durable}
    return [n for n in range(durable[0]["seq"], durable[-1]["seq"]) if n not in numbers]


async def test_a_service_that_forgot_the_link_is_told_again(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "WAIT_MS", 200)
    monkeypatch.setattr(outbox, "_POLL_PAUSE", 0.05)
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        journal.turn(0)
        await told(replica, "run.finished")
        key = SessionKey("testhost", "session_1")

        async def linked() -> str | None:
            record = await replica.service.sessions.load(key)
            return None if record.state is None else SessionState.decode(record.state).web.link

        async with asyncio.timeout(20):
            while (name := await linked()) is None:
                await asyncio.sleep(0.05)
            now = replica.service.clock.now_ms()
            deadline = replica.service.clock.steady() + 5
            await replica.service.engine.submit(key, Claim("another"), at_ms=now, deadline=deadline)
            while await linked() != name:
                await asyncio.sleep(0.05)


async def test_a_cold_session_is_never_woken(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        cold = fake.session("session_cold", live=False)
        cold.turn(0)
        warm = fake.session("session_warm")
        warm.turn(0)
        await told(replica, "run.finished")
        fake.live.add("session_cold")
        cold.turn(1)
        await told(replica, *["run.finished"] * 3)
        await asyncio.sleep(0.3)
    assert not [call for call in fake.calls if any(word in call for word in WAKING)]
    assert {call.split(" ")[0] for call in fake.calls} == {"GET"}


async def test_an_old_session_is_taken_from_now_on(replica: Replica, tmp_path: Path) -> None:
    """What happened days before the link began is no news; a turn in flight is."""
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        old = fake.session("session_old", old=True, seq=700)
        fake.turns["session_old"] = 41
        fake.pending["session_old"] = [
            {
                "approval_id": "approval_1",
                "turn_id": 41,
                "tool_call_id": "c",
                "tool_name": "Bash",
                "action": "x",
            }
        ]
        await told(replica, "run.started", "attention.requested")
        await fake.send(old, old.resolved("approval_1", "approved"))
        await fake.send(old, old.add("turn.ended", turnId=41, reason="completed", durationMs=77))
        events = await told(replica, "run.finished")
    sound(events)
    assert [e["type"] for e in events] == [
        "run.started",
        "attention.requested",
        "attention.answered",
        "attention.resolved",
        "run.finished",
    ]
    assert events[-1]["data"] == {"duration_ms": 77}
    assert events[0].get("data") in (None, {})


async def test_the_heartbeat_is_answered(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        await until(lambda: bool(fake.sockets))
        await fake.everybody(json.dumps({"type": "ping", "payload": {"nonce": "n1"}}))
        await until(lambda: fake.pongs == ["n1"])


async def test_a_connection_that_breaks_loses_and_repeats_nothing(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        for number in range(12):
            frames = journal.turn(number, calls=["a", "b"])
            await fake.send(journal, *frames[:3])
            if number % 3 == 0:
                await fake.hang_up()
            await fake.send(journal, *frames[3:])
        events = await told(replica, *["run.finished"] * 12)
    sound(events)
    assert core(events) == {
        "run.started": 12,
        "run.finished": 12,
        "tool.requested": 24,
        "tool.completed": 24,
    }


async def test_another_link_goes_on_where_one_was(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake:
        journal = fake.session("session_1")
        async with linking_to(replica, tmp_path):
            journal.add("turn.started", turnId=0, origin={"kind": "user"})
            await told(replica, "run.started")
        journal.call(0, "a")
        async with linking_to(replica, tmp_path):
            await told(replica, "tool.completed")
        async with linking_to(replica, tmp_path):
            await asyncio.sleep(0.2)
            await fake.send(journal, journal.add("turn.ended", turnId=0, reason="completed"))
            events = await told(replica, "run.finished")
    sound(events)
    assert core(events) == {"run.started": 1, "tool.requested": 1, "tool.completed": 1, "run.finished": 1}


async def test_links_that_are_killed_again_and_again(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was on its way is lost with the link, and told by the next."""

    async def lost(outbox: Outbox, seconds: float) -> None:
        await outbox._client.aclose()

    monkeypatch.setattr(Outbox, "finish", lost)
    chance = random.Random(7)
    turns_played = 0
    async with faking(tmp_path) as fake:
        journals = [fake.session(f"session_{n}") for n in range(3)]
        for _ in range(12):
            async with linking_to(replica, tmp_path):
                until_s = asyncio.get_running_loop().time() + chance.uniform(0.05, 0.4)
                while asyncio.get_running_loop().time() < until_s:
                    for journal in journals:
                        frames = journal.turn(turns_played, calls=["a", "b"])
                        await fake.send(journal, *frames[: chance.randint(0, 6)])
                        await asyncio.sleep(0.001)
                        await fake.send(journal, *frames)
                    turns_played += 1
                    await asyncio.sleep(0.02)
        async with linking_to(replica, tmp_path):
            async with asyncio.timeout(30):
                while not await _stand(replica, journals):
                    await asyncio.sleep(0.1)
    events = (await replica.replay()).events
    sound(events)
    count = 3 * turns_played
    assert core(events) == {
        "run.started": count,
        "run.finished": count,
        "tool.requested": 2 * count,
        "tool.completed": 2 * count,
    }


async def _stand(replica: Replica, journals: list[Journal]) -> bool:
    for journal in journals:
        record = await replica.service.sessions.load(SessionKey("testhost", journal.session))
        state = None if record.state is None else SessionState.decode(record.state)
        if state is None or cursors.latest(state, "web") != (journal.epoch, journal.seq):
            return False
    return True


async def test_frames_that_come_too_early_wait_for_those_before(replica: Replica, tmp_path: Path) -> None:
    """Some frames go to everybody, subscribed or not, and overtake the replay."""
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        await until(lambda: bool(fake.sockets))
        journal = fake.session("session_1")
        journal.turn(0)
        late = journal.add("event.session.work_changed", busy=False)
        await fake.everybody(json.dumps(late))
        events = await told(replica, "run.finished", "x.kimi-code.web.event.session.work_changed")
    assert [e["type"] for e in events] == [
        "run.started",
        "run.finished",
        "x.kimi-code.web.event.session.work_changed",
    ]


async def test_a_frame_that_is_missing_is_asked_for(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = fake.session("session_1")
        await until(lambda: bool(fake.sockets))
        journal.turn(0)
        await told(replica, "run.finished")
        frames = journal.turn(1, calls=["a"])
        await fake.send(journal, frames[0], frames[3])
        events = await told(replica, *["run.finished"] * 2)
        assert link.report()["servers"][0]["gaps"] == 1
    sound(events)
    assert core(events)["tool.completed"] == 1


async def test_a_gap_of_two_thousand_is_told(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = fake.session("session_1")
        journal.turn(0)
        journal.add("turn.started", turnId=1, origin={"kind": "user"})
        await told(replica, *["run.started"] * 2)
        await fake.stop(file=False)
        for number in range(2, 502):
            journal.turn(number, calls=["x"])
        journal.add("turn.started", turnId=502, origin={"kind": "user"})
        fake.turns["session_1"] = 502
        await fake.start(fake.port)
        await told(replica, "x.kimi-code.web.gap")
        await fake.send(journal, journal.add("turn.ended", turnId=502, reason="completed"))
        events = await told(replica, *["run.finished"] * 2)
        assert link.report()["servers"][0]["resyncs"] == 1
    sound(events)
    gap = next(event for event in events if event["type"] == "x.kimi-code.web.gap")
    assert gap["data"] == {"reason": "buffer_overflow", "missed": 2_001}
    assert gap["severity"] == "warning"
    assert [e["type"] for e in events if e["type"].startswith("run.")] == [
        "run.started",
        "run.finished",
        "run.started",
        "run.cancelled",
        "run.started",
        "run.finished",
    ]


async def test_another_epoch_is_a_new_journal(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        await told(replica, "run.started")
        journal.epoch, journal.seq, journal.frames = "ep_2", 0, []
        await fake.send(journal, journal.add("session.meta.updated"))
        await told(replica, "x.kimi-code.web.gap", "run.cancelled")
        await fake.send(journal, *journal.turn(0))
        events = await told(replica, "run.finished")
    sound(events)
    gap = next(event for event in events if event["type"] == "x.kimi-code.web.gap")
    assert gap["data"] == {"reason": "epoch_changed"}


async def test_garbage_is_counted_and_stops_nothing(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = fake.session("session_1")
        journal.turn(0)
        await told(replica, "run.finished")
        for text in (
            "no json",
            b"\xff\xfe\x00",
            "[1, 2]",
            "null",
            '{"type": 7}',
            '{"type": "turn.started", "session_id": "session_1", "seq": "5"}',
            '{"type": "turn.started", "session_id": 9, "seq": 5}',
            '{"type": "turn.started", "session_id": "session_1", "seq": -1, "payload": [1]}',
            '{"type": "ack", "id": "nobody", "payload": "what"}',
            '{"type": "resync_required", "payload": {"session_id": "session_unheard"}}',
            '{"type": "ping"}',
            "{" * 3_000,
        ):
            await fake.everybody(text)
        await fake.send(journal, *journal.turn(1))
        events = await told(replica, *["run.finished"] * 2)
        assert link.report()["servers"][0]["garbage"] == 9
    sound(events)
    assert fake.opened == 1


async def test_ten_megabytes_in_one_frame(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        journal.add("tool.call.started", turnId=0, toolCallId="a", name="Bash", args={"x": "y" * 10_000_000})
        journal.add("tool.result", turnId=0, toolCallId="a", output="z" * 10_000_000)
        journal.add("turn.ended", turnId=0, reason="completed")
        events = await told(replica, "run.finished")
    sound(events)
    assert core(events) == {"run.started": 1, "tool.requested": 1, "tool.completed": 1, "run.finished": 1}
    assert fake.opened == 1


async def test_a_frame_too_large_for_the_service_goes_without_its_content(
    redis_server: AnyServer, tmp_path: Path
) -> None:
    async with (
        running(redis_server, max_body=200_000) as replica,
        faking(tmp_path) as fake,
        linking_to(replica, tmp_path),
    ):
        journal = fake.session("session_1")
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        for call in "abc":
            journal.add(
                "tool.call.started", turnId=0, toolCallId=call, name="Bash", args={"x": "y" * 150_000}
            )
            journal.add("tool.result", turnId=0, toolCallId=call, output="z" * 500_000)
        journal.add("turn.ended", turnId=0, reason="completed")
        events = await told(replica, "run.finished")
    sound(events)
    assert core(events) == {"run.started": 1, "tool.requested": 3, "tool.completed": 3, "run.finished": 1}
    small = [event for event in events if event["type"] == "tool.completed"]
    assert all("result_digest" not in event["data"] for event in small)


async def test_a_frame_too_large_for_the_link_is_passed_over(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FRAME_LIMIT", 100_000)
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        journal.turn(0)
        await told(replica, "run.finished")
        await fake.send(journal, journal.add("context.spliced", messages="x" * 300_000))
        await told(replica, "x.kimi-code.web.gap")
        await fake.send(journal, *journal.turn(1))
        events = await told(replica, *["run.finished"] * 2)
    sound(events)
    gap = next(event for event in events if event["type"] == "x.kimi-code.web.gap")
    assert gap["data"] == {"reason": "oversized"}


async def test_a_server_that_accepts_and_says_nothing(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_HELLO_SECONDS", 1)
    fake = Fake(tmp_path)
    fake.mute = True
    await fake.start()
    try:
        async with linking_to(replica, tmp_path) as link:
            await until(lambda: "mute" in str(link.report()["servers"]))
            assert link.report()["ok"] is False
            journal = fake.session("session_1")
            journal.turn(0)
            fake.mute = False
            await told(replica, "run.finished")
            assert link.report()["ok"] is True
    finally:
        await fake.stop()


async def test_a_stream_that_falls_silent(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(watch, "_PROBE_SECONDS", 2)
    monkeypatch.setattr(watch, "_ACK_SECONDS", 2)
    async with faking(tmp_path, heartbeat_ms=None) as fake, linking_to(replica, tmp_path):
        journal = fake.session("session_1")
        journal.turn(0)
        await told(replica, "run.finished")
        await asyncio.sleep(1)
        assert fake.opened == 1, "a server that answers is not left"
        fake.deaf = True
        await until(lambda: fake.opened >= 2)
        fake.deaf = False
        await fake.send(journal, *journal.turn(1))
        await told(replica, *["run.finished"] * 2)


async def test_a_server_that_closes_at_once(replica: Replica, tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.closes = True
    await fake.start()
    try:
        async with linking_to(replica, tmp_path) as link:
            await until(lambda: fake.opened >= 3)
            assert link.report()["ok"] is False
            await asyncio.sleep(0.5)
            assert fake.opened <= 12, "it hammers"
            fake.closes = False
            fake.session("session_1").turn(0)
            await told(replica, "run.finished")
    finally:
        await fake.stop()


async def test_a_wrong_token_is_not_tried_again_and_again(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake:
        fake.token("some-other-token")
        async with linking_to(replica, tmp_path) as link:
            await until(lambda: "unauthorized" in str(link.report()["servers"]))
            await asyncio.sleep(1)
            assert fake.refusals == 1
            fake.session("session_1").turn(0)
            fake.token("fake-server-token-0123456789")
            await told(replica, "run.finished")


async def test_what_is_no_server_of_kimi_code_sees_no_token(replica: Replica, tmp_path: Path) -> None:
    """An instance file stayed behind, and its port belongs to another program now."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(4_096))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    instances = tmp_path / "server" / "instances"
    instances.mkdir(parents=True)
    (instances / "1.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))
    (instances / "2.json").write_text("{ half")
    (instances / "3.json").write_text(json.dumps({"host": "127.0.0.1", "port": "x", "pid": -1}))
    (tmp_path / "server.token").write_text("a-precious-token")
    try:
        async with linking_to(replica, tmp_path) as link:
            await until(lambda: "strange" in str(link.report()["servers"]))
    finally:
        server.close()
    assert seen
    assert not any(b"precious" in heard for heard in seen)


async def test_a_server_that_ends_is_let_go(replica: Replica, tmp_path: Path) -> None:
    """An open connection of ours would keep it from ending."""
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path):
        fake.session("session_1").turn(0)
        await told(replica, "run.finished")
        fake.close_port()
        await until(lambda: not fake.sockets)


async def test_two_servers_of_one_home(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as one, faking(tmp_path) as two, linking_to(replica, tmp_path) as link:
        one.session("session_1").turn(0)
        two.session("session_2").turn(0)
        await told(replica, *["run.finished"] * 2)
        assert len(link.report()["servers"]) == 2
        await two.stop()
        await until(lambda: len(link.report()["servers"]) == 1)
        journal = one.journals["session_1"]
        await one.send(journal, *journal.turn(1))
        sound(await told(replica, *["run.finished"] * 3))


@pytest.mark.parametrize("limit", [16 * 1024 * 1024, 4_000])
async def test_a_service_that_is_away_for_a_while(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Frames wait; when too many do, they are let go and asked for again from where the service stands."""
    monkeypatch.setattr(outbox, "HELD_BYTES", limit)
    store = frames_web._store
    away = False

    async def refuse(*given: Any) -> None:
        if away:
            raise frames_web._unstored()
        await store(*given)

    monkeypatch.setattr(frames_web, "_store", refuse)
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = fake.session("session_1")
        journal.turn(0)
        await told(replica, "run.finished")
        away = True
        for number in range(1, 40):
            await fake.send(journal, *journal.turn(number, calls=["a"]))
        await until(lambda: link.report()["service"] != "ok")
        assert link.report()["ok"] is False
        if limit < 10_000:
            await until(lambda: link.report()["frames"]["turned_away"] > 0)
        away = False
        events = await told(replica, *["run.finished"] * 40)
        await until(lambda: bool(link.report()["ok"]))
    sound(events)
    assert core(events) == {
        "run.started": 40,
        "run.finished": 40,
        "tool.requested": 39,
        "tool.completed": 39,
    }


async def test_the_links_own_health(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        fake.session("session_1").turn(0)
        await told(replica, "run.finished")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{link.port}") as client:
            answer = await client.get("/healthz")
            assert answer.status_code == 200
            assert answer.json()["ok"] is True
            assert (await client.get("/else")).status_code == 404
        await fake.stop(file=False)
        await until(lambda: link.report()["ok"] is False)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{link.port}") as client:
            assert (await client.get("/healthz")).status_code == 503


async def test_companion_mode_by_the_services_own_setting(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path, mode=None):
        fake.session("session_1").turn(0)
        events = await told(replica, "x.kimi-code.web.turn.ended")
    assert core(events) == {}


async def test_nothing_of_an_error_or_a_snapshot_leaves_the_link(
    replica: Replica, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="deploy.web")
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        fake.session("session_1", old=True, seq=3)
        fake.turns["session_1"] = 0
        events = await told(replica, "run.started")
        assert SECRET not in json.dumps(link.report())
    assert SECRET not in json.dumps(events)
    assert SECRET not in caplog.text


async def test_a_snapshot_skips_no_frame_that_can_be_had(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session was loaded again after a crash of its server; while we ask how it stands, turns pass."""
    async with faking(tmp_path) as fake:
        journal = fake.session("session_1")
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        async with linking_to(replica, tmp_path):
            await told(replica, "run.started")
        journal.add("turn.started", turnId=1, origin={"kind": "user"})
        snapshot = Rest.snapshot

        async def slow(rest: Rest, session: str) -> Any:
            for number in (1, 2, 3):
                if number > 1:
                    journal.add("turn.started", turnId=number, origin={"kind": "user"})
                    await fake.send(journal, journal.frames[-1])
                journal.call(number, "a")
                journal.add("turn.ended", turnId=number, reason="completed")
                await fake.send(journal, *journal.frames[-3:])
            answer = await snapshot(rest, session)
            await fake.send(journal, *journal.turn(4))
            return answer

        monkeypatch.setattr(Rest, "snapshot", slow)
        async with linking_to(replica, tmp_path):
            events = await told(replica, *["run.finished"] * 4)
    sound(events)
    assert core(events) == {
        "run.started": 5,
        "run.cancelled": 1,
        "run.finished": 4,
        "tool.requested": 3,
        "tool.completed": 3,
    }
