"""Relays that are mute, slow, forgetful, rude or gone; and a Redis that is away while the relay is not."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from deploy.relay.link import Link
from state.sessions import Bounds
from tests.app.replica import Event, Replica, running, until
from tests.relay.lab import TOKEN, Fake, arrives, linked, relays, same, streams
from tests.relay.test_link import work
from tests.servers import AnyServer, OwnServer


def order(events: list[Event]) -> dict[str, list[int]]:
    """Positions by session, without what came again."""
    seen: set[str] = set()
    found: dict[str, list[int]] = {}
    for event in events:
        if event["id"] not in seen:
            seen.add(event["id"])
            found.setdefault(event["session"], []).append(event["seq"])
    return found


async def whole(service: Replica, relay: Fake, *, strictly: bool = True) -> None:
    """Wait until the relay was told every stream of ours, and look at the order."""
    ours: dict[str, list[int]] = {}

    async def complete() -> bool:
        nonlocal ours
        ours = {
            session: [event["seq"] for event in events]
            for session, events in (await streams(service, own=True)).items()
        }
        told = order(relay.events)
        return all(sorted(told.get(session, [])) == seqs for session, seqs in ours.items())

    await arrives(complete)
    if strictly:
        assert order(relay.events) == ours


async def cursors(service: Replica, link: Link) -> dict[str, str]:
    return await link._leases.cursors(link._name)


async def test_a_socket_write_is_no_receipt(redis_server: AnyServer) -> None:
    """A relay that reads and never pongs gets everything again from the next connection."""
    mute = True

    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        return [] if mute and frame["type"] == "ping" and relay.events else None

    async with (
        running(redis_server) as service,
        Fake(manner) as relay,
        linked(service, relay.url, confirm=0.3) as link,
    ):
        await until(lambda: link.bound)
        before = await cursors(service, link)
        await work(service, "s1", 2)
        await until(lambda: len(relay.connections) >= 3)
        assert await cursors(service, link) == before
        assert link._chunk.events < 500
        mute = False
        await whole(service, relay)
        assert len(relay.events) > len(order(relay.events)["s1"])
        await arrives(lambda: moved(service, link, before))


async def moved(service: Replica, link: Link, before: dict[str, str]) -> bool:
    return await cursors(service, link) != before


async def test_one_that_closes_all_the_time_gets_everything_in_order(redis_server: AnyServer) -> None:
    left = 3

    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        nonlocal left
        if "." in frame["type"]:
            left -= 1
            if left < 0:
                left = 3
                return "close"
        return None

    async with running(redis_server) as service, Fake(manner) as relay:
        for session in ("s1", "s2"):
            await work(service, session, 3)
        async with linked(service, relay.url, longest_pause=0.05):
            await whole(service, relay)
            assert len(relay.connections) > 3


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "error", "code": "version-unsupported", "versions": ["7"]},
        {"type": "error", "code": "unauthorized", "detail": "\x1b[31mno"},
        {"type": "hello", "versions": ["0.2"], "role": "both"},
        {"type": "hello", "versions": [], "role": "both"},
        {"type": "closing", "reason": "not today"},
        [],
        "close",
    ],
)
async def test_one_that_does_not_greet_us_is_asked_again(redis_server: AnyServer, answer: object) -> None:
    rude = True

    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        return answer if rude and frame["type"] == "hello" else None

    async with (
        running(redis_server) as service,
        Fake(manner) as relay,
        linked(service, relay.url, hello=0.3) as link,
    ):
        await until(lambda: len(relay.connections) >= 2)
        assert not link.bound
        assert not await service.service.relay_bound()
        rude = False
        await until(lambda: link.bound)
        await work(service, "s1", 1)
        await whole(service, relay)


async def test_what_is_refused_for_good_is_counted_and_passed(redis_server: AnyServer) -> None:
    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        if frame["type"] == "tool.requested":
            return {"type": "error", "code": "invalid-event", "cause": frame["id"], "detail": "no tools"}
        return None

    async with running(redis_server) as service, Fake(manner) as relay, linked(service, relay.url) as link:
        await work(service, "s1", 4)
        await until(lambda: any(event["type"] == "run.finished" for event in relay.events))
        await until(lambda: link.bound)
        assert service.service.counters["relay.refused"] == 4
        assert len(relay.connections) == 1


async def test_what_cannot_be_taken_now_is_sent_again(redis_server: AnyServer) -> None:
    bad = 3

    def manner(relay: Fake, frame: dict[str, Any]) -> object:
        nonlocal bad
        if frame["type"] == "tool.requested" and bad:
            bad -= 1
            return {"type": "error", "code": "unavailable", "cause": frame["id"], "detail": "later"}
        return None

    async with running(redis_server) as service, Fake(manner) as relay, linked(service, relay.url):
        await work(service, "s1", 2)
        await whole(service, relay, strictly=False)
        assert service.service.counters["relay.refused"] == 0


async def test_nonsense_is_not_heeded(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, Fake() as relay, linked(service, relay.url) as link:
        await until(lambda: link.bound)
        connection = relay.connections[-1]
        await connection.send(b"\x00\xff binary")
        for text in (
            "",
            "[]",
            "7",
            "{",
            '{"type":7}',
            '{"type":"pong","t":[]}',
            '{"type":"hello"}',
        ):
            await connection.send(text)
        await connection.send('{"type":"control.attention.respond","session":"s1"}')
        await connection.send('{"type":"run.started","id":"1"}')
        await relay.say({"type": "ping", "t": "mine"})
        await relay.say({"type": "error", "code": "whatever", "detail": "\n\x1b[0m"})
        await until(lambda: {"type": "pong", "t": "mine"} in relay.frames)
        await work(service, "s1", 1)
        await whole(service, relay)
        assert len(relay.connections) == 1


async def test_a_wrong_token_is_no_link(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        for posting in (False, True):
            async with linked(service, relay.url, token="wrong-token", posting=posting) as link:
                await work(service, f"s{posting}", 1)
                lost = service.service.counters["relay.lost"]
                await until(lambda n=lost: service.service.counters["relay.lost"] > n)  # type: ignore[misc]
                assert not await service.service.relay_bound()
                assert "relay.sent" not in service.service.counters.snapshot()
                assert link._told


async def test_a_relay_that_owns_our_emitter_refuses_our_events(redis_server: AnyServer) -> None:
    async with (
        running(redis_server) as service,
        relays(redis_server, emitter="testhost") as relay,
        linked(service, relay.url),
    ):
        await work(service, "s1", 1)
        await until(lambda: service.service.counters["relay.refused.forbidden-source"] > 0)


async def test_what_passed_the_bound_of_the_feed_is_counted_and_caught_up(redis_server: AnyServer) -> None:
    async with running(redis_server, shards=1) as service, relays(redis_server) as relay:
        service.service.sessions.bounds = Bounds(buffer=1_000, feed=20)
        async with linked(service, relay.url):
            await work(service, "s1", 1)
            await same(service, relay)
        for number in range(4):
            await work(service, f"s{number}", 10)
        async with linked(service, relay.url) as link:
            await same(service, relay)
            counters = service.service.counters
            assert counters["relay.missed"] > 60
            assert counters["relay.caught_up"] > 60
            await until(lambda: counters["relay.sent"] > 0)
            assert int((await cursors(service, link))["missed"]) == counters["relay.missed"]
            await work(service, "s1", 1)
            await same(service, relay)


async def test_order_holds_when_the_replay_is_shorter_than_the_feed(redis_server: AnyServer) -> None:
    async with running(redis_server, buffer=4) as service, Fake() as relay:
        async with linked(service, relay.url) as link:
            await until(lambda: link.bound)
            await work(service, "s1", 1)
            await until(lambda: any(event["type"] == "run.finished" for event in relay.events))
        await work(service, "s1", 10)
        await work(service, "s2", 10)
        async with linked(service, relay.url):
            await until(lambda: sum(event["type"] == "run.finished" for event in relay.events) >= 3)
            for seqs in order(relay.events).values():
                assert seqs == sorted(seqs)


async def test_a_new_connection_owns_what_lives_and_repeats_open_requests(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, Fake() as relay:
        await work(service, "live", 2)
        await work(service, "ended", 1)
        await service.hook("SessionEnd", "ended", reason="exit")
        await service.hook("UserPromptSubmit", "asks", prompt="x")
        call = {"tool_name": "Bash", "tool_call_id": "c1", "tool_input": {"command": "rm"}}
        await service.hook("PreToolUse", "asks", **call)
        await service.hook("PermissionRequest", "asks", **call)
        async with linked(service, relay.url) as link:
            await whole(service, relay)
            await until(lambda: link.bound)
            for _ in range(2):
                count = len(relay.events)
                connections = len(relay.connections)
                relay.connections[-1].transport.abort()
                await until(lambda n=connections: len(relay.connections) > n)  # type: ignore[misc]
                await until(lambda n=count: len(relay.events) >= n + 3)  # type: ignore[misc]
                again = relay.events[count:]
                assert {event["session"] for event in again} == {"live", "asks"}
                assert [event["type"] for event in again if event["session"] == "asks"][
                    -1
                ] == "attention.requested"
                assert all(event in relay.events[:count] for event in again)
            answer = {"decision": "approved", "tool_call_id": "c1", "tool_name": "Bash"}
            await service.hook("PermissionResult", "asks", **answer)
            await whole(service, relay)


async def test_a_redis_that_is_away_ends_the_link_in_time(own_server: OwnServer) -> None:
    async with (
        running(own_server, hook_timeout_ms=300) as service,
        Fake() as relay,
        linked(service, relay.url, lease_ms=1_500, renew=0.3) as link,
    ):
        await work(service, "s1", 1)
        await whole(service, relay)
        await asyncio.sleep(0.5)
        own_server.freeze()
        try:
            connection = relay.connections[-1]
            await asyncio.wait_for(connection.wait_closed(), 20)
            assert not link.bound
            assert len(relay.connections) == 1
        finally:
            own_server.thaw()
        await until(lambda: link.bound, 40)
        await work(service, "s1", 1)
        await whole(service, relay)


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_redis_that_restarts(own_server: OwnServer, emptied: bool) -> None:
    async with running(own_server) as service, Fake() as relay, linked(service, relay.url):
        await work(service, "s1", 2)
        await whole(service, relay)
        if emptied:
            own_server.flush()
        else:
            own_server.kill()
            own_server.start()

        async def answers() -> bool:
            response = await service.hook("Notification", "s1", notification_type="x")
            return response.headers["aep-stored"] == "yes"

        await arrives(answers)
        await work(service, "s1", 2)

        async def told() -> bool:
            ours = {event["id"] for event in (await service.replay()).events}
            return ours <= {event["id"] for event in relay.events}

        await arrives(told, 40)
        seqs = order(relay.events)["s1"]
        assert seqs == sorted(seqs)


async def test_secrets_of_the_address_are_not_shown() -> None:
    from deploy.relay.transport import Address

    secret = base64.b64encode(b"user:pass").decode()
    for url, endpoint, shown in (
        (
            f"wss://{secret}@relay.example/base/",
            f"wss://{secret}@relay.example/base/socket",
            "wss://relay.example/base",
        ),
        ("ws://h:1/socket", "ws://h:1/socket", "ws://h:1"),
        ("https://h/x/events", "https://h/x/events", "https://h/x"),
    ):
        address = Address.parse(url)
        assert (address.endpoint, address.shown) == (endpoint, shown)
    assert Address.parse("wss://h/socket", posting=True).endpoint == "https://h/events"
    assert Address.parse("ws://far.example").exposed
    assert not Address.parse("ws://127.0.0.1:1").exposed
    assert not Address.parse("wss://far.example").exposed
    assert TOKEN not in repr(Address.parse("ws://h"))
