"""The link against a relay of our own make: streams, claims, commands, cursors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from deploy.relay.link import Link
from deploy.relay.transport import Address
from handlers.tokens import token_digest
from state.leases import Leases
from tests.app.duplex import command, duplex
from tests.app.replica import Replica, running, until
from tests.relay.lab import AUTHORIZATION, QUICK, TOKEN, arrives, linked, relays, same, streams
from tests.servers import AnyServer


async def work(service: Replica, session: str, count: int = 5) -> None:
    """A session with a prompt and some tools."""
    await service.hook("SessionStart", session, source="startup")
    await service.hook("UserPromptSubmit", session, prompt="do it")
    for number in range(count):
        call = {"tool_name": "Bash", "tool_call_id": f"c{number}"}
        await service.hook("PreToolUse", session, **call, tool_input={"command": "ls"})
        await service.hook("PostToolUse", session, **call)
    await service.hook("Stop", session)


async def test_the_relay_gets_the_streams_of_our_sessions(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        await work(service, "before")
        assert (await service.client.get("/healthz")).json()["relay"] is False
        async with linked(service, relay.url) as link:
            await until(lambda: link.bound)
            await arrives(service.service.relay_bound)
            assert (await service.client.get("/healthz")).json()["relay"] is True
            await work(service, "while")
            found = await same(service, relay)
            assert set(found) == {"before", "while"}
            assert len(found["while"]) > 10
        assert (await service.client.get("/healthz")).json()["relay"] is False


async def test_what_happens_without_a_link_is_sent_by_the_next_one(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        async with linked(service, relay.url):
            await work(service, "s1")
            await same(service, relay)
        await work(service, "s1")
        await work(service, "s2")
        before = service.service.counters["relay.sent"]
        async with linked(service, relay.url):
            found = await same(service, relay)
            count = sum(len(events) for events in found.values())
            assert service.service.counters["relay.sent"] == count
            assert 0 < before < count


async def test_foreign_events_and_commands_are_not_ours_to_send_on(redis_server: AnyServer) -> None:
    async with (
        running(redis_server) as service,
        relays(redis_server) as relay,
        linked(service, relay.url),
        duplex(service.url) as emitter,
    ):
        await emitter.hello("emitter")
        await emitter.send(
            {
                "aep": "0.1",
                "id": "x1",
                "type": "progress.status",
                "time": "2026-01-01T00:00:00Z",
                "source": "aep://elsewhere/agent/other/session/theirs",
                "agent": "other",
                "session": "theirs",
                "seq": 1,
            }
        )
        await work(service, "ours")
        await same(service, relay)
        assert "theirs" in await streams(service, own=False)
        assert "theirs" not in await streams(relay, own=False)


async def test_the_roster_of_the_relay_has_our_sessions_with_what_they_take(redis_server: AnyServer) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with running(redis_server, control=True, **secret) as service, relays(redis_server) as relay:
        await service.hook("SessionStart", "s1", source="startup")
        await service.hook("SessionStart", "gone", source="startup")
        await service.hook("SessionEnd", "gone", reason="exit")
        async with linked(service, relay.url):
            await same(service, relay)
        # Nothing happens any more, and still the next link owns what lives.
        async with linked(service, relay.url), duplex(relay.url, TOKEN) as consumer:
            await consumer.hello()

            async def listed() -> bool:
                await consumer.send({"type": "roster", "id": f"r{len(consumer.frames)}"})
                frame = await consumer.answer("roster", f"r{len(consumer.frames)}")
                return any(entry["session"] == "s1" for entry in frame["entries"])

            await arrives(listed)
            entries = consumer.frames[-1]["entries"]
            assert entries == [
                {
                    "session": "s1",
                    "agent": "kimi-code",
                    "instance": "testhost",
                    "control": {"accepts": ["control.attention.respond"], "ack_window_ms": 10_000},
                    "emits": entries[0]["emits"],
                }
            ]
            assert "attention" in entries[0]["emits"]


async def test_a_command_through_the_relay_is_answered(redis_server: AnyServer) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with running(redis_server, instruct=True, **secret) as service, relays(redis_server) as relay:
        await service.hook("SessionStart", "s1", source="startup")
        async with linked(service, relay.url), duplex(relay.url, TOKEN) as sender:
            await same(service, relay)
            await sender.hello()
            await sender.subscribe()
            asked = command("s1", "x.kimi-code.control.instruct", data={"text": "look at the tests"})
            await sender.send(asked)
            ack = await sender.until(lambda frame: frame.get("cause") == asked["id"])
            assert ack["type"] == "control.accepted"
            response = await service.hook("UserPromptSubmit", "s1", prompt="next")
            assert "look at the tests" in response.text
            delivered = await sender.until(lambda frame: frame["type"].endswith("instruction.delivered"))
            assert delivered["cause"] == asked["id"]

            # Again, byte for byte: the recorded answer comes back the same way.
            sender.frames.clear()
            sender.texts.clear()
            await sender.send(asked)
            again = await sender.until(lambda frame: frame.get("cause") == asked["id"])
            assert again == ack
            await same(service, relay)


async def test_without_a_token_of_the_relay_nothing_is_accepted(redis_server: AnyServer) -> None:
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with running(redis_server, control=True, **secret) as service:
        link = Link(service.service, Address.parse("ws://127.0.0.1:1"), None, timing=QUICK)
        assert link._declaration("kimi-code") == {"accepts": [], "ack_window_ms": 10_000}
        link = Link(service.service, Address.parse("ws://127.0.0.1:1"), TOKEN, timing=QUICK)
        assert link._declaration("kimi-code")["accepts"] == ["control.attention.respond"]
        assert link._declaration("acp")["accepts"] == []


async def test_one_of_many_links_does_the_work(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        async with (
            linked(service, relay.url) as one,
            linked(service, relay.url) as two,
            linked(service, relay.url) as three,
        ):
            links = [one, two, three]
            for _ in range(3):
                await until(lambda: sum(link.bound for link in links) == 1)
                await work(service, "s1", 2)
                await same(service, relay)
                owner = next(link for link in links if link.bound)
                await owner.stop()
                links.remove(owner)
        assert service.service.counters["relay.refused"] == 0


async def test_a_successor_waits_the_lease_out(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        async with linked(service, relay.url) as link:
            name = link._name
            await until(lambda: link.bound)
        leases = Leases(service.service.client, service.service.keys, "somebody")
        lease = await leases.acquire(name, 1_500)
        assert lease is not None
        await work(service, "s1")
        async with linked(service, relay.url) as link:
            await until(lambda: link.bound)
            assert lease.left() <= 0
            await same(service, relay)


async def test_the_cursor_moves_under_the_lease_only(redis_server: AnyServer) -> None:
    """Whoever takes the lease away ends the link at its next receipt."""
    async with running(redis_server) as service, relays(redis_server) as relay:
        late: dict[str, Any] = {"lease_ms": 60_000, "renew": 30.0}
        async with linked(service, relay.url, **late) as link:
            await until(lambda: link.bound)
            at, _, cursors = service.service.keys.lease(link._name)
            await work(service, "s1", 1)
            await same(service, relay)
            await service.service.client.call(at, "SET", at, "1/thief", "PX", 1_000)
            before = await service.service.client.call(cursors, "HGETALL", cursors)
            await service.hook("Notification", "s1", notification_type="x")
            await until(lambda: service.service.counters["relay.lost"] > 0)
            assert await service.service.client.call(cursors, "HGETALL", cursors) == before
            await until(lambda: link.bound)
            await same(service, relay)


async def test_posting_brings_the_same_streams(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        await work(service, "s1")
        async with linked(service, relay.url, posting=True) as link:
            await until(lambda: link.bound)
            assert await service.service.relay_bound()
            await work(service, "s2")
            await same(service, relay)


async def test_once_is_for_a_schedule(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        for posting, session in ((True, "s1"), (False, "s2")):
            await work(service, session)
            url = relay.url if posting else relay.url.replace("http://", "ws://")
            link = Link(service.service, Address.parse(url), TOKEN, timing=QUICK)
            assert await link.once(30)
            assert session in await same(service, relay, 5)
        link = Link(service.service, Address.parse("http://127.0.0.1:1"), TOKEN, timing=QUICK)
        assert not await link.once(5)
        assert await service.service.relay_bound() is False


async def test_tenants_speak_for_themselves(redis_server: AnyServer, tmp_path: Path) -> None:
    """Two emitters with a session of the same name are two claims at the relay."""
    file = tmp_path / "tokens"
    file.write_text(
        "".join(f"{token_digest('token-of-' + who)} {who} emit,watch\n" for who in ("anna", "ben"))
    )
    async with (
        running(
            redis_server, tokens_file=str(file), headers={"authorization": "Bearer token-of-anna"}
        ) as service,
        relays(redis_server) as relay,
        duplex(relay.url, TOKEN) as consumer,
    ):
        for who in ("anna", "ben"):
            payload = {"hook_event_name": "SessionStart", "session_id": "same", "source": "startup"}
            headers = {"authorization": f"Bearer token-of-{who}"}
            assert (await service.client.post("/hook", json=payload, headers=headers)).status_code == 200
        await consumer.hello()
        async with linked(service, relay.url):
            names: list[str] = []
            async with asyncio.timeout(30):
                while len(names) < 2:
                    identity = f"r{len(consumer.frames)}"
                    await consumer.send({"type": "roster", "id": identity})
                    frame = await consumer.answer("roster", identity)
                    names = sorted(entry["instance"] for entry in frame["entries"])
                    await asyncio.sleep(0.05)
            assert names == ["anna", "ben"]
            asked = command("same")
            await consumer.send(asked)
            refused = await consumer.until(lambda frame: frame.get("cause") == asked["id"])
            assert refused["code"] == "ambiguous"


async def test_a_held_call_is_answered_through_the_relay(redis_server: AnyServer) -> None:
    """Also from a connection that begins while it waits: the link of then tells it again."""
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with running(redis_server, control=True, **secret) as service:
        call = {"tool_name": "Bash", "tool_call_id": "c1", "tool_input": {"command": "rm -rf build"}}
        held = asyncio.create_task(service.hook("PreToolUse", "s1", **call))
        async with relays(redis_server) as relay, linked(service, relay.url):
            async with duplex(relay.url, TOKEN) as sender:
                await sender.hello()
                await sender.send({"type": "subscribe", "id": "s", "from": "all"})
                request = await sender.until(lambda frame: frame["type"] == "attention.requested")
                answer = {"answer": {"option": "deny", "text": "not here"}}
                asked = command("s1", subject=request["id"], data=answer)
                await sender.send(asked)
                ack = await sender.until(lambda frame: frame.get("cause") == asked["id"])
                assert ack["type"] == "control.accepted"
                assert "not here" in (await held).text
                resolved = await sender.until(lambda frame: frame["type"] == "attention.resolved")
                assert resolved["subject"] == request["id"]
                answered = await sender.until(lambda frame: frame["type"] == "attention.answered")
                assert answered["cause"] == asked["id"]
            await same(service, relay)


async def test_a_command_that_came_too_late_is_not_told_by_another_session(redis_server: AnyServer) -> None:
    """The session has ended since: silence, which the sender takes for a timeout; nothing in the replay."""
    secret: dict[str, Any] = {"token": TOKEN, "headers": AUTHORIZATION}
    async with (
        running(redis_server, instruct=True, **secret) as service,
        relays(redis_server) as relay,
        linked(service, relay.url),
        duplex(relay.url, TOKEN) as sender,
    ):
        await work(service, "s1", 1)
        await service.hook("SessionEnd", "s1", reason="exit")
        before = await same(service, relay)
        await sender.hello()
        await sender.subscribe()
        await sender.send(command("s1", "x.kimi-code.control.instruct", data={"text": "late"}))
        await until(lambda: service.service.counters["commands.refused.no-route"] == 1)
        assert await same(service, relay) == before
