"""Leases: one holder, rising fences, cursors only under the lease."""

from __future__ import annotations

import asyncio

import pytest

from state.connection import Client
from state.errors import LeaseLost
from state.keys import Keys, slot
from state.leases import Leases


async def test_one_holds_it_and_the_next_has_a_higher_fence(client: Client, keys: Keys) -> None:
    one, two = Leases(client, keys, "one"), Leases(client, keys, "two")
    lease = await one.acquire("relay", 60_000)
    assert lease is not None
    assert 59 < lease.left() <= 60
    assert await two.acquire("relay", 60_000) is None
    assert await one.acquire("relay", 60_000) is None
    other = await two.acquire("sweeper", 60_000)
    assert other is not None
    await one.renew(lease)
    await one.release(lease)
    assert lease.left() <= 0
    after = await two.acquire("relay", 60_000)
    assert after is not None
    assert after.fence > lease.fence
    with pytest.raises(LeaseLost):
        await one.renew(lease)
    await one.release(lease)
    await two.renew(after)


async def test_a_lease_that_ran_out_is_lost_also_when_nobody_took_it(client: Client, keys: Keys) -> None:
    leases = Leases(client, keys, "one")
    lease = await leases.acquire("relay", 30)
    assert lease is not None
    await asyncio.sleep(0.05)
    assert lease.left() < 0
    with pytest.raises(LeaseLost):
        await leases.renew(lease)
    with pytest.raises(LeaseLost):
        await leases.move(lease, {"0": "5"})


async def test_fences_rise_over_an_emptied_server(client: Client, admin: Client, keys: Keys) -> None:
    leases = Leases(client, keys, "one")
    first = await leases.acquire("relay")
    await admin.everywhere("FLUSHALL")
    await asyncio.sleep(0.01)
    second = await leases.acquire("relay")
    assert first is not None
    assert second is not None
    assert second.fence > first.fence


async def test_cursors_move_only_under_the_lease(client: Client, keys: Keys) -> None:
    one, two = Leases(client, keys, "one"), Leases(client, keys, "two")
    lease = await one.acquire("relay", 60_000)
    assert lease is not None
    assert await one.cursors("relay") == {}
    await one.move(lease, {"0": "5-0/7", "1": ""})
    await one.move(lease, {"0": "6-0/8"})
    await one.release(lease)
    assert await two.cursors("relay") == {"0": "6-0/8", "1": ""}
    after = await two.acquire("relay", 60_000)
    assert after is not None
    with pytest.raises(LeaseLost):
        await one.move(lease, {"0": "1-0/1"})
    await two.move(after, {"0": "7-0/9"})
    assert (await one.cursors("relay"))["0"] == "7-0/9"


async def test_of_many_who_ask_at_once_one_gets_it(client: Client, keys: Keys) -> None:
    asked = await asyncio.gather(*(Leases(client, keys, f"{n}").acquire("relay", 60_000) for n in range(50)))
    assert sum(lease is not None for lease in asked) == 1


async def test_who_lives_says_so(client: Client, keys: Keys) -> None:
    leases = Leases(client, keys, "one")
    assert not await leases.lives("one")
    await leases.beat(60_000)
    assert await leases.lives("one")
    assert not await leases.lives("two")
    await leases.hush()
    assert not await leases.lives("one")
    await leases.beat(20)
    await asyncio.sleep(0.05)
    assert not await leases.lives("one")


def test_a_lease_and_its_cursors_are_in_one_slot() -> None:
    keys = Keys("aep", 16)
    for name in ("relay", "sweeper", "web:laptop"):
        assert len({slot(key) for key in keys.lease(name)}) == 1
