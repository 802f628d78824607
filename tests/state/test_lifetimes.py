"""No key lives for ever: each has a lifetime, or is in the list of those that are bounded otherwise."""

from __future__ import annotations

import re

from state.claims import Claims
from state.clocks import Clocks
from state.connection import Client
from state.foreign import Foreign
from state.gates import mark
from state.keys import Keys, SessionKey
from state.leases import Leases
from state.sessions import DAY_MS, HOUR_MS, Bounds, Put, Sessions
from tests.leaks import eternal
from tests.servers import AnyServer
from tests.state.toy import Engine

NOW = 1_000_000
KEEP = 7 * DAY_MS

LONGEST = {
    rb":rec$": 2 * KEEP,
    rb":s:[0-9a-f]{32}:evs$": KEEP,
    rb":end$": 365 * DAY_MS,
    rb":put:": 60_000,
    rb":(feed:n|index|due|foreign|src|low)$": 2 * KEEP,
    rb":(feed|ids|f:[0-9a-f]{32}:evs)$": KEEP,
    rb":lease:relay$": 60_000,
    rb":fence$": 365 * DAY_MS,
    rb":cursors$": 30 * DAY_MS,
    rb":alive:": 60_000,
    rb":clocks$": 60_000,
    rb":gates$": HOUR_MS,
    rb":claims:": 60_000,
    rb":claims$": 40 * 60_000,
}


async def use_everything(client: Client, keys: Keys) -> None:
    sessions = Sessions(client, keys, Bounds(buffer=4, feed=10))
    await sessions.prepare()
    engine, foreign = Engine(sessions), Foreign(client, keys, Bounds(buffer=4, feed=10))
    for number in range(40):
        key = SessionKey("host", f"session-{number % 7}")
        await engine.apply(key, [b"%d" % number], NOW + number)
        await foreign.admit(key, "aep://other", f"id-{number}", (0, number), b"theirs", now_ms=NOW + number)
        await foreign.command(key, b"command")
    key = SessionKey("host", "later")
    # A first step without an event, a due time, one without, a put, an end.
    steps = [(b"", 0, False), (b"", NOW, False), (b"event", 0, False), (b"", NOW, False), (b"event", 0, True)]
    for body, due, ended in steps:
        record = await sessions.load(key)
        await sessions.commit(
            key,
            expected=record.version,
            commit_id=sessions.commit_id(),
            state=b"state",
            events=[(record.top + 1, body)] if body else [],
            now_ms=NOW,
            due_ms=due or None,
            ended=ended,
            puts=[Put(f"put {record.version}", b"value", 60_000), mark("process-1.a", "open", NOW, key)],
        )
    await sessions.put(key, Put("alone", b"value", 60_000))
    leases = Leases(client, keys, "process-1")
    lease = await leases.acquire("relay", 60_000)
    assert lease is not None
    await leases.move(lease, {"0": "1-1"})
    await leases.beat(60_000)
    await Clocks(client, keys, "process-1").say(3, NOW)
    await Claims(client, keys, "process-1").replace({"session": b"claim"}, now_ms=NOW, ttl_ms=60_000)


async def test_every_key_has_a_lifetime(
    redis_server: AnyServer, client: Client, admin: Client, keys: Keys
) -> None:
    await use_everything(client, keys)
    names = [name for node in await admin.everywhere("KEYS", "*") for name in node]
    seen = set()
    for name in names:
        assert name.startswith(b"aep:"), name
        ttl = await client.call(name.decode(), "PTTL", name)
        if eternal(name):
            assert ttl == -1
            continue
        kinds = [kind for kind in LONGEST if re.search(kind, name)]
        assert len(kinds) == 1, name
        seen.add(kinds[0])
        assert 0 < ttl <= LONGEST[kinds[0]], (name, ttl)
    assert seen == set(LONGEST)


async def test_what_has_no_lifetime_of_its_own_is_bounded_exactly(
    redis_server: AnyServer, client: Client, admin: Client, keys: Keys
) -> None:
    await use_everything(client, keys)
    names = [name.decode() for node in await admin.everywhere("KEYS", "*") for name in node]
    for name in names:
        if name.endswith(":feed"):
            assert await client.call(name, "XLEN", name) <= 10
        elif re.search(r":s:[0-9a-f]{32}:evs$", name):
            assert await client.call(name, "XLEN", name) <= 4
        elif re.search(r":f:[0-9a-f]{32}:evs$", name):
            assert await client.call(name, "ZCARD", name) <= 4
        elif name.endswith(":ids"):
            assert await client.call(name, "ZCARD", name) <= 16
