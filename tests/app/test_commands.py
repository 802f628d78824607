"""Claims, the roster, and commands that cross from one replica to another (AEP-0003 §4.1, AEP-0004 §4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers.commands import pack, unpack
from handlers.ingest import is_command
from tests.app.duplex import Duplex, Frame, command, duplex, event
from tests.app.replica import Replica, fresh_prefix, running
from tests.servers import AnyServer

TOKEN = "correct-horse"
CONTROL = {"accepts": ["control.attention.respond"], "ack_window_ms": 7_000, "odd": [1, {"kept": None}]}


@contextlib.asynccontextmanager
async def two(server: AnyServer, **settings: Any) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas of one deployment."""
    prefix = fresh_prefix()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        running(server, redis_prefix=prefix, token=TOKEN, headers=headers, **settings) as one,
        running(server, redis_prefix=prefix, token=TOKEN, headers=headers, **settings) as other,
    ):
        yield one, other


@contextlib.asynccontextmanager
async def target(replica: Replica, session: str) -> AsyncIterator[Duplex]:
    """An emitter that takes commands for `session`."""
    async with duplex(replica.url, TOKEN) as emitter:
        await emitter.hello("emitter", capabilities={"control": CONTROL, "emits": ["session"]})
        await emitter.send(event(session, 0, "session.started"))
        await emitter.send({"type": "ping", "t": 1})
        await emitter.until(lambda frame: frame["type"] == "pong")
        yield emitter


async def roster(consumer: Duplex, identity: str = "r") -> list[Frame]:
    consumer.frames.clear()
    await consumer.send({"type": "roster", "id": identity})
    frame = await consumer.answer("roster", identity)
    entries: list[Frame] = frame["entries"]
    return entries


async def refusal(sender: Duplex, sent: Frame) -> Frame:
    await sender.send(sent)
    return await sender.until(lambda frame: frame["type"] == "error" and frame.get("cause") == sent["id"])


async def test_a_command_reaches_the_claim_on_another_replica(redis_server: AnyServer) -> None:
    async with (
        two(redis_server) as (one, other),
        target(one, "a") as emitter,
        duplex(other.url, TOKEN) as sender,
    ):
        await sender.hello()
        await sender.subscribe("s", filter={"session": "a"})
        sent = command("a", data={"answer": {"option": "allow"}}, subject="x")
        text = json.dumps(sent)
        await sender.send(text)
        await emitter.until(lambda frame: frame.get("id") == sent["id"])
        assert emitter.texts[-1] == text
        # Subscribers see it live, and the ack of the target like any event of it.
        await sender.until(lambda frame: frame.get("id") == sent["id"])
        ack = event("a", 1, "control.accepted", cause=sent["id"])
        await emitter.send(ack)
        await sender.until(lambda frame: frame.get("cause") == sent["id"])
        held = await other.replay()
        assert [entry["id"] for entry in held.events] == [held.events[0]["id"], ack["id"]]


async def test_refusals(redis_server: AnyServer) -> None:
    async with two(redis_server) as (one, other), target(one, "a"), duplex(other.url, TOKEN) as sender:
        await sender.hello()
        await one.client.post(
            "/events",
            json=event("history", 0),
            headers={"aep-version": "0.1", "content-type": "application/json"},
        )
        assert (await refusal(sender, command("nobody")))["code"] == "no-route"
        assert (await refusal(sender, command("history")))["code"] == "no-route"
        assert (await refusal(sender, command("a", "control.pause")))["code"] == "unsupported"
        async with target(other, "a"):
            assert (await refusal(sender, command("a")))["code"] == "ambiguous"
        sequenced = command("a") | {"seq": 3}
        assert (await refusal(sender, sequenced))["code"] == "invalid-event"
        await one.hook("SessionStart", "ours")
        assert (await refusal(sender, command("ours")))["code"] == "unsupported"
        await one.hook("SessionEnd", "ours", reason="exit")
        assert (await refusal(sender, command("ours")))["code"] == "no-route"
        assert (await refusal(sender, command("unknown")))["code"] == "no-route"
        held = await other.replay()
        assert not [entry for entry in held.events if is_command(entry["type"])]


async def test_without_authentication_nothing_is_commanded(redis_server: AnyServer) -> None:
    async with (
        running(redis_server) as replica,
        duplex(replica.url) as emitter,
        duplex(replica.url) as sender,
    ):
        await emitter.hello("emitter", capabilities={"control": CONTROL})
        await emitter.send(event("a", 0))
        await sender.hello()
        assert (await refusal(sender, command("a")))["code"] == "unauthorized"


async def test_rights(redis_server: AnyServer, tmp_path: Any) -> None:
    from handlers.tokens import token_digest

    tokens = tmp_path / "tokens"
    lines = [f"{token_digest(f'{right}-token')} team watch,{right}" for right in ("emit", "answer", "steer")]
    tokens.write_text("\n".join(lines))
    async with running(redis_server, tokens_file=str(tokens)) as replica:
        expected = {
            "emit": ("unauthorized", "unauthorized"),
            "answer": ("no-route", "unauthorized"),
            "steer": ("no-route", "no-route"),
        }
        for right, (respond, cancel) in expected.items():
            async with duplex(replica.url, f"{right}-token") as sender:
                await sender.hello()
                assert (await refusal(sender, command("a")))["code"] == respond
                assert (await refusal(sender, command("a", "control.cancel")))["code"] == cancel


async def test_the_roster_is_the_same_everywhere(redis_server: AnyServer) -> None:
    async with two(redis_server) as (one, other), duplex(other.url, TOKEN) as consumer:
        await consumer.hello()
        assert await roster(consumer) == []
        async with target(one, "a"):
            entry = {
                "session": "a",
                "agent": "tester",
                "instance": "t/1",
                "control": CONTROL,
                "emits": ["session"],
            }
            assert await roster(consumer) == [entry]
            async with target(other, "a"):
                assert await roster(consumer) == [entry, entry]
            await one.hook("SessionStart", "ours")
            await one.hook("SessionStart", "over")
            await one.hook("SessionEnd", "over", reason="exit")
            ours = [found for found in await roster(consumer) if found["agent"] == "kimi-code"]
            assert [found["session"] for found in ours] == ["ours"]
            assert ours[0]["control"]["accepts"] == []
        async with asyncio.timeout(20):
            while [found for found in await roster(consumer) if found["session"] == "a"]:
                await asyncio.sleep(0.02)


async def test_an_emitter_gets_no_roster(redis_server: AnyServer) -> None:
    async with running(redis_server) as replica, duplex(replica.url) as emitter:
        await emitter.hello("emitter")
        await emitter.send({"type": "roster", "id": "r"})
        answer = await emitter.answer("roster", "r")
        assert (answer["type"], answer["code"]) == ("error", "unauthorized")
        await emitter.send(event("a", 0))
        await emitter.send({"type": "ping"})
        await emitter.until(lambda frame: frame["type"] == "pong")


async def test_claims_of_a_killed_process_go_away(
    redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import handlers.claims

    monkeypatch.setattr(handlers.claims, "TTL_MS", 300)
    async with running(redis_server) as replica:
        for task in replica.service._tasks[3:]:
            task.cancel()
        async with duplex(replica.url) as emitter:
            await emitter.hello("emitter")
            await emitter.send(event("a", 0))
            async with asyncio.timeout(10):
                while not await replica.service.claims.everywhere():
                    await asyncio.sleep(0.005)
                while await replica.service.claims.everywhere():
                    await asyncio.sleep(0.05)


async def test_claims_come_back_after_redis_was_emptied(
    redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import handlers.claims

    monkeypatch.setattr(handlers.claims, "_SAY_SECONDS", 0.1)
    async with running(redis_server) as replica, duplex(replica.url) as emitter:
        await emitter.hello("emitter")
        await emitter.send(event("a", 0))
        async with asyncio.timeout(10):
            while not await replica.service.claims.everywhere():
                await asyncio.sleep(0.01)
            redis_server.flush()
            while not await replica.service.claims.everywhere():
                await asyncio.sleep(0.01)


def test_the_feed_form_of_a_command() -> None:
    assert unpack(pack("p.1", b'{"a":\n1}')) == ("p.1", b'{"a":\n1}')


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("control.cancel", True),
        ("control.attention.respond", True),
        ("control.future", True),
        ("x.kimi-code.control.instruct", True),
        ("control.accepted", False),
        ("control.rejected", False),
        ("x.kimi-code.session.control", False),
        ("tool.requested", False),
    ],
)
def test_what_a_command_is(name: str, expected: bool) -> None:
    assert is_command(name) is expected
