"""Discovery, and `POST /events` from emitters that are not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.duplex import command, event
from tests.app.replica import Replica, running
from tests.servers import AnyServer

JSON = {"content-type": "application/json", "aep-version": "0.1"}
LINES = {"content-type": "application/x-ndjson", "aep-version": "0.1"}


async def post(replica: Replica, *events: Any, headers: dict[str, str] | None = None) -> Any:
    body = "\n".join(json.dumps(entry) for entry in events) + "\n"
    return await replica.client.post("/events", content=body.encode(), headers=headers or LINES)


async def test_discovery(replica: Replica) -> None:
    answer = await replica.client.get("/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["aep"] == ["0.1"]
    assert found["endpoints"] == {"events": "/events", "stream": "/stream", "socket": "/socket"}
    assert found["capabilities"]["replay"] == {"buffer": 10_000, "all": True}
    assert found["capabilities"]["control"]["accepts"] == []
    assert (await replica.client.get("/.well-known/aep")).json() == found


async def test_an_event_and_a_batch(replica: Replica) -> None:
    async with replica.stream() as stream:
        single = await replica.client.post("/events", json=event("a", 0), headers=JSON)
        assert (single.status_code, single.json()) == (202, {"accepted": 1, "new": 1})
        batch = await post(replica, event("a", 1), event("b", 0), event("a", 2))
        assert (batch.status_code, batch.json()["new"]) == (202, 3)
        events = await stream.until_events(4)
    # Sessions may live in different shards, whose feeds are not in step; within one the order is kept.
    assert [entry["seq"] for entry in events if entry["session"] == "a"] == [0, 1, 2]
    assert [entry["seq"] for entry in events if entry["session"] == "b"] == [0]


async def test_bytes_are_kept(replica: Replica) -> None:
    line = '{"seq":0,  "aep":"0.1", "id":"x\\u00e9","type":"progress.status","time":"2026-01-01T00:00:00Z",'
    line += '"source":"aep://h","agent":"o","session":"s","vendorx":1, "data":{"b":1.50,"a":[1e2,"\\ud800"]}}'
    answer = await replica.client.post("/events", content=line.encode(), headers=LINES)
    assert answer.status_code == 202
    text = (await replica.client.get("/stream", params={"from": "all", "live": "0"})).text
    assert f"data: {line}\n" in text
    spread = line.replace(",", ",\n\t").replace('"id":"x', '"id":"y').encode()
    assert (await replica.client.post("/events", content=spread, headers=JSON)).status_code == 202
    held = await replica.replay()
    assert [entry["id"] for entry in held.events] == ["xé", "yé"]


async def test_a_redelivery_is_passed_on_and_kept_once(replica: Replica) -> None:
    sent = event("a", 0)
    async with replica.stream() as stream:
        for known in (1, 0, 0):
            assert (await post(replica, sent)).json()["new"] == known
        assert [entry["id"] for entry in await stream.until_events(3)] == [sent["id"]] * 3
    assert len((await replica.replay()).events) == 1


async def test_backfill_is_sorted_by_position(replica: Replica) -> None:
    order = [(0, 3), (1, 0), (0, 0), (0, 1)]
    await post(replica, *(event("a", seq, epoch=epoch) for epoch, seq in order))
    held = await replica.replay()
    assert [(entry["epoch"], entry["seq"]) for entry in held.events] == sorted(order)
    position = {"session": "a", "epoch": 0, "seq": 1}
    behind = await replica.replay(**{"from": json.dumps([position])})
    assert [(entry["epoch"], entry["seq"]) for entry in behind.events] == [(0, 3), (1, 0)]


async def test_the_buffer_is_exact_for_foreign_events(redis_server: AnyServer) -> None:
    async with running(redis_server, buffer=4) as replica:
        await post(replica, *(event("a", seq) for seq in range(10)))
        first = await replica.replay(**{"from": json.dumps([{"session": "a", "epoch": 0, "seq": 0}])})
        assert [entry["seq"] for entry in first.events] == [6, 7, 8, 9]
        assert first.comments[1] == "replay-exhausted a 0:6"
        exact = await replica.replay(**{"from": json.dumps([{"session": "a", "epoch": 0, "seq": 5}])})
        assert [entry["seq"] for entry in exact.events] == [6, 7, 8, 9]
        assert not any("exhausted" in comment for comment in exact.comments)


async def test_what_has_no_position_is_live_only(replica: Replica) -> None:
    beat = event("a", 0, "agent.heartbeat")
    for name in ("session", "seq"):
        del beat[name]
    async with replica.stream() as stream:
        assert (await post(replica, beat)).status_code == 202
        assert (await stream.until_events(1))[0]["type"] == "agent.heartbeat"
        assert stream.messages.ids == [None]
    assert (await replica.replay()).events == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain", "aep-version": "0.1"}, 415),
        ({"content-type": "application/x-ndjson"}, 400),
        ({"content-type": "application/x-ndjson", "aep-version": "9.9"}, 426),
        ({"content-type": "application/x-ndjson", "aep-version": "1.0"}, 426),
        ({"content-type": "application/x-ndjson", "aep-version": "nonsense"}, 426),
    ],
)
async def test_headers_are_checked(replica: Replica, headers: dict[str, str], status: int) -> None:
    answer = await post(replica, event("a", 0), headers=headers)
    assert answer.status_code == status
    if status == 426:
        assert answer.json()["versions"] == ["0.1"]
    assert (await replica.replay()).events == []


async def test_a_wrong_line_refuses_the_batch(replica: Replica) -> None:
    wrong = event("a", 1)
    del wrong["id"]
    answer = await post(replica, event("a", 0), wrong, event("a", 2))
    assert (answer.status_code, answer.json()["error"], answer.json()["line"]) == (400, "invalid-event", 1)
    for body in (b"", b"\n\n", b"nonsense\n", b"[]\n", b"null\n", b"\xff\n"):
        answer = await replica.client.post("/events", content=body, headers=LINES)
        assert answer.status_code == 400, body
    assert (await replica.replay()).events == []


async def test_a_source_of_ours_cannot_be_claimed(replica: Replica) -> None:
    await replica.hook("SessionStart", "s1")
    for source in (
        "aep://testhost/agent/kimi-code/session/s1",
        "aep://testhost/agent/acp",
        "aep://testhost/agent/acp/x",
        "AEP://TESTHOST/agent/kimi-code/session/s1",
        "aep://x@testhost:80/agent/kimi-code/session/s1",
        "aep://%74esthost/agent/%6bimi-code/session/s1",
    ):
        answer = await post(replica, event("s1", 2**40, source=source))
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden-source")
    assert (
        await post(replica, event("s1", 1, source="aep://testhost/agent/claude-code/session/s1"))
    ).status_code == 202


async def test_commands_are_not_posted(replica: Replica) -> None:
    answer = await post(replica, command("a"))
    assert (answer.status_code, answer.json()["error"]) == (400, "control-not-here")


async def test_limits(redis_server: AnyServer) -> None:
    async with running(redis_server, max_batch=5, max_body=20_000) as replica:
        answer = await post(replica, *(event("a", seq) for seq in range(6)))
        assert (answer.status_code, answer.json()["error"]) == (413, "too-many-events")
        answer = await post(replica, event("a", 0, data={"x": "y" * 30_000}))
        assert (answer.status_code, answer.json()["error"]) == (413, "payload-too-large")
        assert (await replica.replay()).events == []


async def test_ours_and_others_of_one_name(replica: Replica) -> None:
    await replica.hook("SessionStart", "same")
    await post(replica, event("same", 5))
    held = await replica.replay(filter=json.dumps({"session": "same"}))
    assert [entry["agent"] for entry in held.events] == ["kimi-code", "other"]
