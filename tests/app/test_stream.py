"""`GET /stream`: replay, live, the hand-over between them, and the ways a stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from handlers.aep.filters import parse_filter
from handlers.delivery import Item, Outbox
from handlers.fanout import Subscription
from tests.app.replica import Event, Replica, running, until
from tests.servers import AnyServer


def seqs(events: list[Event]) -> list[int]:
    return [event["seq"] for event in events]


async def notify(replica: Replica, count: int, session: str = "s1") -> None:
    for number in range(count):
        await replica.hook("Notification", session, notification_type=f"n{number}")


async def test_a_live_event_arrives(replica: Replica) -> None:
    async with replica.stream() as stream:
        await replica.hook("SessionStart", source="startup")
        events = await stream.until_events(1)
    assert events[0]["type"] == "session.started"


async def test_filter_and_ceiling(redis_server: AnyServer) -> None:
    from handlers.aep.levels import Capture

    async with running(redis_server, capture=Capture.FULL) as replica:
        wanted = json.dumps({"type": "run.*", "session": "s2"})
        async with replica.stream(filter=wanted, capture="metadata") as stream:
            await replica.hook("UserPromptSubmit", "s1", prompt="not this session")
            await replica.hook("SessionStart", "s2", source="startup")
            await replica.hook("UserPromptSubmit", "s2", prompt="do not tell")
            events = await stream.until_events(1)
        assert events[0]["type"] == "run.started"
        assert events[0]["session"] == "s2"
        assert "do not tell" not in json.dumps(events)
        assert events[0].get("capture", "metadata") == "metadata"
        held = await replica.replay(filter=wanted)
        assert held.events[0]["data"]["prompt"] == "do not tell"


@pytest.mark.parametrize(
    "query",
    [
        {"filter": "{"},
        {"filter": '{"data":1}'},
        {"filter": "[]"},
        {"filter": '{"type":"*"}'},
        {"from": "{}"},
        {"from": "everything"},
        {"from": '[{"session":"a"}]'},
        {"from": "[1]"},
        {"capture": "some"},
        {"from": json.dumps([{"session": str(n), "seq": 0} for n in range(1025)])},
    ],
)
async def test_malformed_requests_are_refused(replica: Replica, query: dict[str, str]) -> None:
    response = await replica.client.get("/stream", params=query)
    assert response.status_code == 400
    assert response.json()["error"] in {"invalid-filter", "invalid-from", "invalid-capture", "limit-exceeded"}


async def test_replay_from_a_position(replica: Replica) -> None:
    await notify(replica, 5)
    await notify(replica, 3, "s2")
    everything = await replica.replay()
    ours = [event for event in everything.events if event["session"] == "s1"]
    position = {"session": "s1", "epoch": 0, "seq": ours[1]["seq"]}
    held = await replica.replay(**{"from": json.dumps([position])})
    assert seqs(held.events) == seqs(ours[2:])
    assert held.comments == ["connected", "replay-complete"]
    none = await replica.replay(**{"from": json.dumps([position | {"epoch": 1}])})
    assert none.events == []


async def test_last_event_id_resumes_and_from_wins(replica: Replica) -> None:
    await notify(replica, 4)
    everything = await replica.replay()
    headers = {"last-event-id": everything.ids[1] or ""}
    async with replica.stream(headers) as stream:
        assert seqs(await stream.until_events(2)) == seqs(everything.events[2:])
        await replica.hook("Stop")
        await stream.until_events(3)
    position = [{"session": "s1", "epoch": 0, "seq": everything.events[2]["seq"]}]
    async with replica.stream(headers, **{"from": json.dumps(position)}) as stream:
        await stream.until_comment("replay-complete")
        assert seqs(stream.events[:1]) == seqs(everything.events[3:])


async def test_replay_says_when_it_is_exhausted(redis_server: AnyServer) -> None:
    async with running(redis_server, buffer=4) as replica:
        async with replica.stream() as stream:
            await notify(replica, 10)
            told = seqs(await stream.until_events(10))
        held = await replica.replay()
        assert seqs(held.events) == told[-4:]
        assert not any("exhausted" in comment for comment in held.comments)
        old = await replica.replay(**{"from": json.dumps([{"session": "s1", "epoch": 0, "seq": told[2]}])})
        assert seqs(old.events) == told[-4:]
        assert old.comments[1] == f"replay-exhausted s1 0:{told[-4]}"
        edge = await replica.replay(**{"from": json.dumps([{"session": "s1", "epoch": 0, "seq": told[-5]}])})
        assert seqs(edge.events) == told[-4:]
        assert edge.comments == ["connected", "replay-complete"]


async def test_live_zero_without_from_is_empty(replica: Replica) -> None:
    await notify(replica, 2)
    response = await replica.client.get("/stream", params={"live": "0"})
    assert "event:" not in response.text


async def test_the_hand_over_has_no_gap_and_no_repeat(replica: Replica) -> None:
    """Consumers that come at any time while events flow get every event once, in order."""
    generator = random.Random(1)
    sessions = [f"s{n}" for n in range(4)]
    total = 300

    async def produce() -> None:
        for _ in range(total):
            await replica.hook("Notification", generator.choice(sessions))

    async def consume(delay: float) -> list[Event]:
        await asyncio.sleep(delay)
        async with replica.stream(**{"from": "all"}) as stream:
            return list(await stream.until_events(total))

    producer = asyncio.create_task(produce())
    consumers = [asyncio.create_task(consume(generator.random() * 0.8)) for _ in range(12)]
    await producer
    for consumer in consumers:
        events = await consumer
        assert len({(event["source"], event["id"]) for event in events}) == total
        for session in sessions:
            positions = seqs([event for event in events if event["session"] == session])
            assert positions == sorted(set(positions))


async def test_cut_anywhere_and_resumed_every_event_comes_once(replica: Replica) -> None:
    generator = random.Random(2)
    total = 200

    async def produce() -> None:
        for number in range(total):
            await replica.hook("Notification", f"s{number % 3}")

    seen: dict[tuple[str, str], Event] = {}
    order: dict[str, list[int]] = {}
    positions: dict[str, int] = {}
    first = await replica.hook("SessionStart", "s0")
    assert first.status_code == 200
    producer = asyncio.create_task(produce())
    resume = "all"
    while len(seen) < total + 1:
        wanted = generator.randrange(1, 40)
        async with replica.stream(**{"from": resume}) as stream:
            with contextlib.suppress(TimeoutError):
                await stream.until_events(wanted, seconds=1)
            for event in stream.events:
                assert (event["source"], event["id"]) not in seen
                seen[event["source"], event["id"]] = event
                order.setdefault(event["session"], []).append(event["seq"])
                positions[event["session"]] = event["seq"]
        resume = json.dumps(
            [{"session": f"s{n}", "epoch": 0, "seq": positions.get(f"s{n}", 0)} for n in range(3)]
        )
    await producer
    for numbers in order.values():
        assert numbers == sorted(numbers)


async def test_a_stopping_process_says_so(redis_server: AnyServer) -> None:
    async with running(redis_server) as replica:
        async with replica.stream() as stream:
            replica.service.drain()
            messages = await stream.until_end()
        assert messages.comments[-1] == "shutting-down"
        assert (await replica.client.get("/stream")).status_code == 503
        assert (await replica.client.get("/readyz")).status_code == 503


async def test_a_consumer_that_leaves_is_forgotten(replica: Replica) -> None:
    async with replica.stream():
        assert len(replica.service.hub) == 1
    await until(lambda: not len(replica.service.hub))


async def test_a_consumer_that_does_not_read_is_let_go(replica: Replica) -> None:
    host, _, port = replica.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await writer.drain()
    await until(lambda: len(replica.service.hub) == 1)
    event = {
        "id": "1",
        "type": "error.raised",
        "source": "s",
        "severity": "error",
        "data": {"x": "y" * 100_000},
    }
    async with asyncio.timeout(20):
        while len(replica.service.hub):
            replica.service.hub.publish("own", json.dumps(event).encode(), "testhost")
            await asyncio.sleep(0)
    assert replica.service.counters["streams.overrun"] == 1
    assert (await replica.hook("Stop")).headers["aep-stored"] == "yes"
    writer.close()
    del reader


async def test_names_that_would_break_the_stream(replica: Replica) -> None:
    for session in ("a\nb", "a\r\nevent: evil", "colon:1:2", 'quote"', "x" * 10_000, "ünïcode \u2028"):
        assert (await replica.hook("SessionStart", session)).headers["aep-stored"] == "yes"
    held = await replica.replay()
    assert len(held.events) == 6
    assert {event["type"] for event in held.events} == {"session.started"}
    for event, identifier in zip(held.events, held.ids, strict=True):
        if identifier is not None:
            assert identifier == f"{event['session']}:0:{event['seq']}"


def test_what_was_replayed_is_not_repeated_live() -> None:
    box = Outbox()
    subscription = Subscription(_Nobody(), box, Item.render, parse_filter({}), None, holding=True)

    def event(seq: int) -> Item:
        body: Any = {"id": str(seq), "source": "s", "session": "s", "type": "a.b", "seq": seq}
        return Item("own", json.dumps(body).encode(), body)

    def offer(seq: int) -> None:
        item = event(seq)
        subscription.offer(item, item.body)

    offer(2)
    offer(3)
    offer(4)
    for seq in (1, 2, 3):
        assert subscription.replay(event(seq)) is not None
    subscription.release()
    offer(3)
    offer(5)
    assert [json.loads(body)["seq"] for body in box.take()] == [4, 5]


class _Nobody:
    def drain(self) -> None:
        raise AssertionError

    def lag(self) -> None:
        raise AssertionError
