"""Hundreds of gates at once on two replicas, everybody acting by chance: every story is a true one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.app.replica import Event, Replica
from tests.control.desk import TERMINALS, Desk, about, desk, hold, replicas
from tests.servers import AnyServer

pytestmark = pytest.mark.slow

GATES = 300
SESSIONS = 25
TRUE = (
    ["requested", "answered allow", "resolved answered"],
    ["requested", "answered deny", "resolved answered"],
    ["requested", "resolved dismissed"],
    ["requested", "timeout"],
)


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_the_stream_and_the_hooks_agree(redis_server: AnyServer, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        replicas(redis_server, 2, attention_timeout_ms=1_500) as nodes,
        desk(nodes[0]) as one,
        desk(nodes[1]) as other,
    ):
        results: list[tuple[Event, str | None, list[str]]] = []
        for start in range(0, GATES, 60):
            lives = [
                life(nodes, (one, other), random.Random(f"{seed}.{n}"), n) for n in range(start, start + 60)
            ]
            results += [result for result in await asyncio.gather(*lives) if result is not None]
            if chance.random() < 0.5:
                session = f"s{chance.randrange(SESSIONS)}"
                await chance.choice(nodes).hook("SessionEnd", session, reason="exit")
        await asyncio.sleep(5.5)
        events = (await nodes[1].replay()).events
        assert len(results) > GATES * 0.8
        kinds = set()
        for request, verdict, accepted in results:
            story = about(events, request)
            assert story in TRUE, story
            kinds.add(story[-1] if len(story) == 2 else story[1])
            assert len(accepted) <= 1, "one winner"
            if verdict == "gone":
                continue
            assert (verdict == "deny") == ("answered deny" in story), (verdict, story)
            if "answered allow" in story:
                assert accepted == ["allow"]
            if "answered deny" in story:
                assert accepted == ["deny"]
        assert len(kinds) == 4, "every kind of end was seen"
        subjects = [event["subject"] for event in events if event["type"] in TERMINALS]
        assert len(subjects) == len(set(subjects))
        assert [len(node.service.holding) for node in nodes] == [0, 0]


async def life(
    nodes: list[Replica], desks: tuple[Desk, Desk], chance: random.Random, number: int
) -> tuple[Event, str | None, list[str]] | None:
    """One call: held somewhere, answered by some, abandoned by some; what became of it."""
    await asyncio.sleep(chance.random() * 0.5)
    session, call = f"s{number % SESSIONS}", f"call_{number}"
    held = hold(chance.choice(nodes), session, call=call)
    asked = asyncio.ensure_future(chance.choice(desks).request(call))
    done, _ = await asyncio.wait({held.task, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked not in done:
        # Too many of this session at once: it was let go.
        asked.cancel()
        return None
    request = asked.result()
    acts: list[Any] = []
    for human in desks:
        if chance.random() < 0.6:
            acts.append(answer(human, request, chance.choice(["allow", "deny"]), chance.random() * 1.6))
    leaving = chance.random() < 0.15
    if leaving:
        acts.append(leave(held, chance.random()))
    if chance.random() < 0.15:
        acts.append(result(chance.choice(nodes), session, call, chance.random()))
    outcomes = await asyncio.gather(*acts)
    accepted = [outcome for outcome in outcomes if outcome]
    if leaving:
        return request, "gone", accepted
    return request, "deny" if await held.verdict() is not None else "free", accepted


async def answer(human: Desk, request: Event, option: str, delay: float) -> str | None:
    await asyncio.sleep(delay)
    ack = await human.answer(request, option=option)
    return option if ack["type"] == "control.accepted" else None


async def leave(held: Any, delay: float) -> None:
    await asyncio.sleep(delay)
    if not held.task.done():
        await held.hang_up()


async def result(node: Replica, session: str, call: str, delay: float) -> None:
    await asyncio.sleep(delay)
    await node.hook("PostToolUse", session, tool_name="Bash", tool_call_id=call, tool_output="ok")
