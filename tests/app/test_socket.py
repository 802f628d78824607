"""`/socket`: hello, subscriptions, refusals in band, ingest, the end of a connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.app.duplex import duplex, event
from tests.app.replica import Replica, running, until
from tests.servers import AnyServer

CODES = {"invalid-filter", "unknown-dialect", "unauthorized", "limit-exceeded"}


async def closed(connection: Any) -> int:
    async with asyncio.timeout(20):
        try:
            while True:
                await connection.connection.recv()
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd is not None else 0


async def test_hello_chooses_one_version(replica: Replica) -> None:
    async with duplex(replica.url) as consumer:
        await consumer.send(
            {"type": "hello", "versions": ["7.0", "0.1"], "role": "consumer", "capabilities": {"new": 1}}
        )
        hello = await consumer.until(lambda _: True)
        assert (hello["type"], hello["versions"]) == ("hello", ["0.1"])
        assert hello["capabilities"]["roster"] == {}


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (event("a", 0), "hello-required"),
        ({"type": "subscribe", "id": "x"}, "hello-required"),
        ("not json", "hello-required"),
        (b"\x00\x01", "hello-required"),
        ("[]", "hello-required"),
        ({"type": "hello", "versions": ["9.9"], "role": "consumer"}, "version-unsupported"),
        ({"type": "hello", "versions": "0.1", "role": "consumer"}, "version-unsupported"),
        ({"type": "hello", "versions": ["0.1"], "role": "king"}, "hello-required"),
        ({"type": "hello", "versions": ["0.1"], "role": "emitter"}, "hello-required"),
    ],
)
async def test_a_wrong_beginning_is_the_end(replica: Replica, first: Any, code: str) -> None:
    async with duplex(replica.url) as other:
        await other.send(first)
        error = await other.until(lambda frame: frame["type"] == "error")
        assert error["code"] == code
        if code == "version-unsupported":
            assert error["versions"] == ["0.1"]
        assert await closed(other) == 1008


async def test_replay_then_live(replica: Replica) -> None:
    for _ in range(3):
        await replica.hook("Notification", "s1")
    held = (await replica.replay()).events
    async with duplex(replica.url) as consumer:
        await consumer.hello()
        position = {"session": "s1", "epoch": 0, "seq": held[0]["seq"]}
        assert (await consumer.subscribe("one", **{"from": [position]}))["type"] == "subscribed"
        assert await consumer.events(2) == held[1:]
        await replica.hook("Stop", "s1")
        assert len(await consumer.events(3)) == 3
        assert consumer.texts[-1] == json.dumps(
            consumer.frames[-1], separators=(",", ":"), ensure_ascii=False
        )


async def test_many_subscriptions_and_each_form_once(replica: Replica) -> None:
    async with duplex(replica.url) as consumer:
        await consumer.hello()
        await consumer.subscribe("all")
        await consumer.subscribe("again", filter={"type": "session.*"})
        await consumer.subscribe("none", filter={"session": "other"})
        await replica.hook("SessionStart", "s1", source="startup")
        await replica.hook("Stop", "s1")
        events = await consumer.events(2)
        assert events[0]["type"] == "session.started"
        assert len({entry["id"] for entry in events}) == 2
        await consumer.send({"type": "unsubscribe", "id": "all"})
        assert (await consumer.answer("unsubscribed", "all"))["type"] == "unsubscribed"
        await replica.hook("Stop", "s1")
        await replica.hook("SessionStart", "s2")
        await consumer.until(lambda frame: frame.get("session") == "s2")
        assert len(consumer.have()) == 3


async def test_refusals_are_in_band_and_disturb_nobody(replica: Replica) -> None:
    wrong: list[dict[str, Any]] = [
        {"filter": {"data": 1}},
        {"filter": []},
        {"filter": {"type": "*"}},
        {"from": {}},
        {"from": "some"},
        {"from": [{"session": "a"}]},
        {"from": [{"session": str(n), "seq": 0} for n in range(2_000)]},
        {"capture": "much"},
    ]
    async with duplex(replica.url) as consumer:
        await consumer.hello()
        await consumer.subscribe("good")
        for number, members in enumerate(wrong):
            answer = await consumer.subscribe(f"w{number}", **members)
            assert answer["type"] == "error", members
            assert answer["code"] in CODES
        assert (await consumer.subscribe("good"))["type"] == "subscribed"
        for frame in (
            "nonsense",
            "[1]",
            b"binary",
            '{"type":"subscribe"}',
            '{"type":"zigzag"}',
            '{"no":"type"}',
        ):
            await consumer.send(frame)
        await consumer.send('{"type":"subscribe","id":"' + "x" * 3_000_000 + '"}')
        await consumer.send({"type": "ping", "t": 17})
        assert (await consumer.until(lambda frame: frame["type"] == "pong"))["t"] == 17
        await replica.hook("Stop", "s1")
        await consumer.events(1)


async def test_ten_thousand_subscriptions(replica: Replica) -> None:
    async with duplex(replica.url) as consumer:
        await consumer.hello()
        for number in range(10_000):
            await consumer.send({"type": "subscribe", "id": f"s{number}", "filter": {"session": "nobody"}})
        last = await consumer.answer("subscribed", "s9999")
        assert (last["type"], last["code"]) == ("error", "limit-exceeded")
        accepted = [frame for frame in consumer.frames if frame["type"] == "subscribed"]
        assert len(accepted) == 256
        assert len(replica.service.hub) == 256
    await until(lambda: len(replica.service.hub) == 0)


async def test_a_thousand_positions_are_answered(replica: Replica) -> None:
    async with duplex(replica.url) as consumer:
        await consumer.hello()
        positions = [{"session": f"none{number}", "epoch": 0, "seq": 0} for number in range(1_024)]
        assert (await consumer.subscribe("many", **{"from": positions}))["type"] == "subscribed"
        await replica.hook("Stop", "s1")
        await consumer.events(1)


async def test_replay_exhausted_names_the_earliest(redis_server: AnyServer) -> None:
    async with running(redis_server, buffer=3) as replica:
        async with replica.stream() as stream:
            for _ in range(6):
                await replica.hook("Notification", "s1")
            told = [entry["seq"] for entry in await stream.until_events(6)]
        async with duplex(replica.url) as consumer:
            await consumer.hello()
            await consumer.subscribe("x", **{"from": [{"session": "s1", "epoch": 0, "seq": told[0]}]})
            await consumer.events(3)
            frame = next(frame for frame in consumer.frames if frame["type"] == "replay-exhausted")
            assert frame == {
                "type": "replay-exhausted",
                "sub": "x",
                "session": "s1",
                "earliest": {"epoch": 0, "seq": told[3]},
            }
            assert consumer.frames.index(frame) < consumer.frames.index(consumer.have()[0])


async def test_emitters_connect_here_too(replica: Replica) -> None:
    async with duplex(replica.url) as emitter, duplex(replica.url) as consumer:
        await emitter.hello("emitter")
        await consumer.hello()
        await consumer.subscribe()
        text = json.dumps(event("a", 0, vendorx="kept"), indent=None)
        await emitter.send(text)
        await consumer.events(1)
        assert consumer.texts[-1] == text
        wrong = event("a", 1)
        wrong["type"] = "Not.Legal"
        await emitter.send(wrong)
        error = await emitter.until(lambda frame: frame["type"] == "error")
        assert (error["code"], error["cause"]) == ("invalid-event", wrong["id"])
        await consumer.send(event("a", 2))
        error = await consumer.until(lambda frame: frame["type"] == "error")
        assert error["code"] == "unauthorized"
        assert (await emitter.subscribe("no"))["code"] == "unauthorized"
    assert [entry["seq"] for entry in (await replica.replay()).events] == [0]


async def test_a_stopping_process_closes_with_positions(redis_server: AnyServer) -> None:
    async with running(redis_server) as replica, duplex(replica.url) as consumer:
        await consumer.hello()
        await consumer.subscribe("s")
        await replica.hook("Stop", "s1")
        events = await consumer.events(1)
        replica.service.drain()
        frame = await consumer.until(lambda frame: frame["type"] == "closing")
        assert frame["delivered"] == [{"sub": "s", "session": "s1", "epoch": 0, "seq": events[0]["seq"]}]
        assert await closed(consumer) == 1001


async def test_a_consumer_that_does_not_read_is_let_go(replica: Replica) -> None:
    async with duplex(replica.url, max_queue=1) as consumer:
        await consumer.hello()
        await consumer.subscribe()
        body = {
            "id": "1",
            "type": "error.raised",
            "source": "s",
            "severity": "error",
            "data": {"x": "y" * 100_000},
        }
        async with asyncio.timeout(30):
            while not replica.service.counters["sockets.overrun"]:
                replica.service.hub.publish("own", json.dumps(body).encode(), "testhost")
                await asyncio.sleep(0)
        await until(lambda: len(replica.service.hub) == 0)
        assert (await replica.hook("Stop")).headers["aep-stored"] == "yes"
        consumer.connection.transport.abort()


async def test_tokens_and_origins(redis_server: AnyServer, tmp_path: Any) -> None:
    from handlers.tokens import token_digest

    tokens = tmp_path / "tokens"
    tokens.write_text(
        f"{token_digest('emit-only-token')} anna emit\n{token_digest('watch-only-token')} team watch\n"
    )
    async with running(redis_server, tokens_file=str(tokens)) as replica:
        with pytest.raises(InvalidStatus) as refused:
            async with duplex(replica.url):
                pass
        assert refused.value.response.status_code == 401
        async with duplex(replica.url, "emit-only-token") as other:
            assert (await other.hello("consumer"))["code"] == "unauthorized"
        async with duplex(replica.url, "watch-only-token") as other:
            assert (await other.hello("both"))["code"] == "unauthorized"
        async with duplex(replica.url, "emit-only-token") as other:
            assert (await other.hello("emitter"))["type"] == "hello"
    async with running(redis_server) as replica:
        with pytest.raises(InvalidStatus) as refused:
            async with duplex(replica.url, origin="http://evil.example"):
                pass
        assert refused.value.response.status_code == 403


async def test_tokens_are_not_logged(redis_server: AnyServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running(redis_server, token="correct-horse") as replica:
        async with duplex(replica.url, "correct-horse") as other:
            await other.hello()
        await replica.client.get("/stream?live=0&access_token=correct-horse")
    ours = [record for record in caplog.records if record.name.startswith(("uvicorn", "handlers", "state"))]
    assert ours
    assert not [record for record in ours if "correct-horse" in record.getMessage()]
