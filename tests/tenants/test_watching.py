"""Nothing that one tenant does is seen by the other, on any surface."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.app.duplex import duplex, event
from tests.tenants.conftest import SESSION, House, Tenant, whose

LINES = "application/x-ndjson"


async def work(tenant: Tenant) -> None:
    await tenant.hook("SessionStart", source="startup")
    await tenant.hook("UserPromptSubmit", prompt="hi")
    await tenant.hook("PreToolUse", tool_name="Bash", tool_call_id="c1", tool_input={"command": "ls"})


def lines(*frames: object) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


async def test_replay_by_every_way_of_asking(house: House) -> None:
    await work(house.anna)
    await house.ben.hook("Notification", body="mine")
    theirs = await house.anna.replay()
    mine = await house.ben.replay()
    assert (whose(theirs.events), len(theirs.events)) == ({"anna"}, 3)
    assert (whose(mine.events), len(mine.events)) == ({"ben"}, 1)
    by_filter = await house.ben.replay(filter=json.dumps({"session": SESSION}))
    assert by_filter.events == mine.events
    source = theirs.events[0]["source"]
    for wanted in ({"source": source}, {"type": "session.*"}, {"session": [SESSION, "x"], "run": "*"}):
        response = await house.ben.get("/stream", live="0", **{"from": "all", "filter": json.dumps(wanted)})
        assert "anna" not in response.text
    position = {"session": SESSION, "epoch": 0, "seq": 0}
    assert (await house.ben.replay(**{"from": json.dumps([position])})).events == mine.events
    # The position of the other's first event, as a browser would send it after a reconnect.
    assert theirs.ids[0] is not None
    assert whose((await house.ben.replay(last=theirs.ids[0])).events) <= {"ben"}
    assert whose((await house.ops.replay()).events) == {"anna", "ben"}


async def test_what_was_trimmed_of_the_other_is_not_told(house: House) -> None:
    await house.anna.hook("Stop", "only-annas")
    found = await house.ben.replay(**{"from": json.dumps([{"session": "only-annas", "epoch": 0, "seq": 0}])})
    assert found.events == []
    assert found.comments == ["connected", "replay-complete"]


async def test_live_streams(house: House) -> None:
    client = house.replica.client
    async with (
        client.stream("GET", "/stream", headers=house.anna.headers) as annas,
        client.stream("GET", "/stream", headers=house.ben.headers) as bens,
    ):
        streams = [response.aiter_text() for response in (annas, bens)]
        for stream in streams:
            assert "connected" in await anext(stream)
        await work(house.anna)
        await house.ben.hook("Notification", body="the last one")
        seen = ""
        async with asyncio.timeout(20):
            while "\n\n" not in seen:
                seen += await anext(streams[1])
        assert "anna" not in seen
        assert "aep://ben/" in seen
        seen = ""
        async with asyncio.timeout(20):
            while seen.count("\n\n") < 3:
                seen += await anext(streams[0])
        assert "aep://ben/" not in seen


@pytest.mark.parametrize("resume", [None, "all"])
async def test_subscriptions(house: House, resume: str | None) -> None:
    await work(house.anna)
    more = {"from": resume} if resume else {}
    async with duplex(house.ben.url, house.ben.token) as consumer:
        await consumer.hello()
        await consumer.subscribe("s", filter={"session": SESSION}, **more)
        await consumer.subscribe("t", filter={"source": "aep://anna/agent/kimi-code/session/same"}, **more)
        await work(house.anna)
        await house.ben.hook("Notification", body="mine")
        events = await consumer.events(1)
        assert whose(events) == {"ben"}
        await consumer.send({"type": "ping", "t": 1})
        await consumer.until(lambda frame: frame["type"] == "pong")
        assert whose(consumer.have()) == {"ben"}


async def test_the_roster(house: House) -> None:
    await work(house.anna)
    async with duplex(house.anna.url, house.anna.token) as emitter:
        await emitter.hello("both", capabilities={"control": {"accepts": ["control.cancel"]}})
        await emitter.send(event("annas-other", 0))
        entries: dict[str, list[str]] = {}
        for tenant in (house.anna, house.ben, house.ops):
            async with duplex(tenant.url, tenant.token) as consumer:
                await consumer.hello()
                async with asyncio.timeout(20):
                    while True:
                        identity = f"r{len(consumer.frames)}"
                        await consumer.send({"type": "roster", "id": identity})
                        frame = await consumer.answer("roster", identity)
                        entries[tenant.name] = sorted(entry["session"] for entry in frame["entries"])
                        if tenant is house.ben or len(entries[tenant.name]) == 2:
                            break
                        await asyncio.sleep(0.02)
        assert entries == {"anna": ["annas-other", SESSION], "ben": [], "ops": ["annas-other", SESSION]}


async def test_posted_events(house: House) -> None:
    """Both post the same event: it is new to both, and nobody sees the other's."""
    made = event(SESSION, 7) | {"data": {"phase": "of anna"}}
    assert (await house.anna.post("/events", made)).json() == {"accepted": 1, "new": 1}
    made["data"] = {"phase": "of ben"}
    assert (await house.ben.post("/events", made)).json() == {"accepted": 1, "new": 1}
    for tenant in (house.anna, house.ben):
        found = (await tenant.replay()).events
        assert [entry["data"]["phase"] for entry in found] == [f"of {tenant.name}"]


async def test_nobody_speaks_for_the_other(house: House) -> None:
    await work(house.anna)
    made = event(SESSION, 1, source="aep://anna/agent/kimi-code/session/same")
    answer = await house.ben.post("/events", made)
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden-source")
    async with duplex(house.ben.url, house.ben.token) as emitter:
        await emitter.hello("both")
        await emitter.send(made)
        refused = await emitter.until(lambda frame: frame["type"] == "error")
        assert refused["code"] == "forbidden-source"
    assert len((await house.anna.replay()).events) == 3


async def test_web_frames(house: House) -> None:
    frame = {
        "type": "turn.started",
        "session_id": SESSION,
        "seq": 40,
        "epoch": "e1",
        "timestamp": "2026-11-30T00:00:00Z",
        "payload": {"turnId": 0, "agentId": "main"},
    }
    taken = await house.anna.post("/frames/web", lines(frame), LINES)
    assert taken.json()["cursors"][SESSION]["seq"] == 40
    # Neither all cursors nor the one of that very session tell the other how far anna's link is.
    assert (await house.ben.post("/frames/web", b"", LINES)).json()["cursors"] == {}
    asked = await house.ben.post("/frames/web", lines({"link": "sessions", "ids": [SESSION]}), LINES)
    assert asked.json()["cursors"] == {}
    late = frame | {"seq": 39}
    assert (await house.ben.post("/frames/web", lines(late), LINES)).json()["cursors"][SESSION]["seq"] == 39
    assert whose((await house.ben.replay()).events) <= {"ben"}


async def test_acp_frames(house: House) -> None:
    line = {"t": 1_796_050_200_000, "dir": "c2a", "conn": "c1", "frame": {"method": "x", "params": {}}}

    async def cursors(tenant: Tenant, number: int) -> dict[str, int]:
        answer = await tenant.post("/frames/acp", lines(line | {"n": number}), LINES)
        found: dict[str, int] = answer.json()["cursors"]
        return found

    assert await cursors(house.anna, 9) == {"c1": 9}
    assert await cursors(house.ben, 3) == {"c1": 3}


async def test_counts_name_nobody(house: House) -> None:
    """Counts of the whole service are shown to tenants; names of tenants and of sessions are not in them."""
    await work(house.anna)
    made = event("secret-session", 1, source="aep://secret-source/agent/other")
    await house.anna.post("/events", made)
    for path in ("/healthz", "/metrics", "/events", "/.well-known/aep", "/readyz"):
        answer = await house.ben.get(path)
        assert answer.status_code == 200, path
        for word in ("anna", SESSION, "secret-session", "secret-source", "token-of"):
            assert word not in answer.text, (path, word)
    for path in ("/healthz", "/metrics"):
        answer = await house.replica.client.get(path)
        assert "counters" not in answer.text
        assert "aep_" not in answer.text
