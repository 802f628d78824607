"""Allow on one replica against deny on another, two hundred times."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.control.desk import Desk, about, desk
from tests.control.fleet import Node, fleet
from tests.servers import AnyServer

pytestmark = pytest.mark.slow

RACES = 200
TOGETHER = 10


async def test_two_hundred_races_have_one_winner_each(redis_server: AnyServer) -> None:
    async with fleet(redis_server, 2) as nodes, desk(nodes[0].url) as one, desk(nodes[1].url) as other:
        chance = random.Random(7)
        results: list[tuple[str, str | None, dict[str, Any]]] = []
        for start in range(0, RACES, TOGETHER):
            group = range(start, start + TOGETHER)
            results += await asyncio.gather(*(race(nodes, one, other, chance, number) for number in group))
        winners = [winner for winner, _, _ in results]
        # Neither side is the one that always wins.
        assert min(winners.count("allow"), winners.count("deny")) >= 10
        events = await nodes[1].events()
        for winner, reason, request in results:
            assert (reason is not None) == (winner == "deny"), "the hook got the winner's verdict"
            assert about(events, request) == ["requested", f"answered {winner}", "resolved answered"]
            denied = [
                event
                for event in events
                if event["type"] == "tool.denied" and event.get("cause") == request["cause"]
            ]
            assert len(denied) == (winner == "deny")


async def race(
    nodes: Any, one: Desk, other: Desk, chance: random.Random, number: int
) -> tuple[str, str | None, dict[str, Any]]:
    """One call, two answers at once; the winner, what the hook was told, and the request."""
    holder: Node = chance.choice(nodes)
    held = holder.hold(f"race{number // 2}", call=f"race_call_{number}")
    request = await one.request(held.call)
    await other.request(held.call)
    sides = [(one, "allow"), (other, "deny")]
    chance.shuffle(sides)
    acks = await asyncio.gather(*(human.answer(request, option=option) for human, option in sides))
    accepted = [
        option for (_, option), ack in zip(sides, acks, strict=True) if ack["type"] == "control.accepted"
    ]
    rejected = [ack for ack in acks if ack["type"] == "control.rejected"]
    assert len(accepted) == len(rejected) == 1
    assert rejected[0]["data"]["reason"] == "refused"
    assert rejected[0]["data"]["code"] in ("already-decided", "closed")
    assert accepted[0] in rejected[0]["data"]["detail"], "the loser is told who won"
    return accepted[0], await held.verdict(), request
