"""Instructions: queued, handed over once with the next prompt, in order, or told as dropped."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from handlers.engine import Outcome
from handlers.lifecycle.instructions import EXPIRY_MS, Deliver
from tests.app.replica import Event, MovableClock, Replica
from tests.control.desk import desk, hold, replicas
from tests.servers import AnyServer


async def prompt(replica: Replica, session: str = "s1", **more: Any) -> dict[str, Any]:
    """The reply to a prompt."""
    fields = {"prompt": [{"type": "text", "text": "go on"}], "is_steer": False, **more}
    answer: dict[str, Any] = (await replica.hook("UserPromptSubmit", session, **fields)).json()
    return answer


def told(events: list[Event]) -> list[tuple[str, str]]:
    """What became of instructions, and of which."""
    start = "x.kimi-code.instruction."
    return [
        (event["type"].removeprefix(start), event["cause"])
        for event in events
        if event["type"].startswith(start)
    ]


async def test_delivered_in_order_once_with_the_next_prompt(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        await one.hook("SessionStart", source="startup")
        for text in ("use staging", "no emoji", "  be short  "):
            assert (await human.instruct("s1", text))["type"] == "control.accepted"
        assert (await prompt(one, is_steer=True)) == {}
        assert (await prompt(one)) == {"message": "use staging\n\nno emoji\n\nbe short"}
        assert (await prompt(other)) == {}
        events = (await one.replay()).events
        sent = [made["id"] for made in human.sent]
        assert told(events) == [("delivered", made) for made in sent]
        delivered = [event for event in events if event["type"].endswith("instruction.delivered")]
        assert all(event["data"]["queued_ms"] >= 0 for event in delivered)
        started = [event["run"] for event in events if event["type"] == "run.started"]
        assert {event["run"] for event in delivered} == {started[0]}


async def test_no_other_reply_carries_an_instruction(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "use staging")
        held = hold(one)
        await human.answer(await human.request(held.call), option="allow")
        assert await held.verdict() is None
        for event in ("PostToolUse", "Stop", "SessionStart", "PreCompact", "Notification"):
            assert (await one.hook(event)).json() == {}
        assert (await prompt(one)) == {"message": "use staging"}


async def test_prompts_at_once_share_nothing(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 3) as nodes, desk(nodes[0]) as human:
        await prompt(nodes[0])
        for number in range(10):
            await human.instruct("s1", f"<{number}>")
        replies = await asyncio.gather(*(prompt(node) for node in nodes for _ in range(4)))
        words = "\n\n".join(reply["message"] for reply in replies if reply)
        assert sorted(words.split("\n\n")) == [f"<{number}>" for number in range(10)]


async def test_limits_say_which(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        for text, code in (("x" * 4_001, "too-long"), ("", "empty"), ("  ", "empty"), (7, "empty")):
            ack = await human.instruct("s1", text)
            assert (ack["data"]["reason"], ack["data"]["code"]) == ("invalid", code)
        for _ in range(20):
            assert (await human.instruct("s1", "\u6f22" * 4_000))["type"] == "control.accepted"
        ack = await human.instruct("s1", "one more")
        assert (ack["data"]["reason"], ack["data"]["code"]) == ("invalid", "queue-full")
        assert "20" in ack["data"]["detail"]
        message = (await prompt(one))["message"]
        assert message.count("\u6f22") == 80_000
        assert (await human.instruct("s1", "one more"))["type"] == "control.accepted"


async def test_the_end_of_the_session_drops_what_is_left(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await one.hook("SessionStart", source="startup")
        await human.instruct("s1", "use staging")
        await one.hook("SessionEnd", reason="exit")
        events = (await one.replay()).events
        assert [event["type"] for event in events[-2:]] == [
            "x.kimi-code.instruction.dropped",
            "session.ended",
        ]
        assert events[-2]["data"]["reason"] == "session-ended"
        assert events[-2]["cause"] == human.sent[0]["id"]
        await one.hook("SessionStart", source="resume")
        assert (await human.instruct("s1", "again"))["type"] == "control.accepted"
        assert await prompt(one) == {"message": "again"}


async def test_what_no_prompt_fetches_expires(redis_server: AnyServer) -> None:
    clock = MovableClock()
    async with replicas(redis_server, 1, clock=clock) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "use staging")
        clock.fixed = clock.now_ms() + EXPIRY_MS + 1
        dropped = await human.wait(lambda frame: frame["type"] == "x.kimi-code.instruction.dropped")
        assert dropped["data"]["reason"] == "expired"
        assert dropped["cause"] == human.sent[0]["id"]
        assert await prompt(one) == {}


async def test_a_client_that_left_before_the_reply_gets_it_with_the_next_prompt(
    redis_server: AnyServer, monkeypatch: Any
) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "first")
        await human.instruct("s1", "second")
        gate = asyncio.Event()
        submit = one.service.engine.submit

        async def slow(key: Any, given: Any, **more: Any) -> Outcome:
            outcome = await submit(key, given, **more)
            if isinstance(given, Deliver):
                gate.set()
                await asyncio.sleep(0.3)
            return outcome

        monkeypatch.setattr(one.service.engine, "submit", slow)
        lost = asyncio.create_task(prompt(one))
        await gate.wait()
        lost.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lost
        await human.wait(lambda frame: frame["type"] == "x.kimi-code.instruction.returned")
        await human.instruct("s1", "third")
        monkeypatch.undo()
        assert await prompt(one) == {"message": "first\n\nsecond\n\nthird"}
        ids = [made["id"] for made in human.sent]
        assert told((await one.replay()).events) == [
            ("delivered", ids[0]),
            ("delivered", ids[1]),
            ("returned", ids[0]),
            ("returned", ids[1]),
            ("delivered", ids[0]),
            ("delivered", ids[1]),
            ("delivered", ids[2]),
        ]


async def test_a_client_that_left_early_costs_nothing(redis_server: AnyServer, monkeypatch: Any) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "use staging")
        gate = asyncio.Event()
        get = one.service.sessions.get

        async def slow(*given: Any) -> bytes | None:
            gate.set()
            await asyncio.sleep(0.3)
            return await get(*given)

        monkeypatch.setattr(one.service.sessions, "get", slow)
        lost = asyncio.create_task(prompt(one))
        await gate.wait()
        lost.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lost
        monkeypatch.undo()
        await asyncio.sleep(0.5)
        assert await prompt(one) == {"message": "use staging"}
        assert [what for what, _ in told((await one.replay()).events)] == ["delivered"]


async def test_words_that_are_gone_are_told_as_lost(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "use staging")
        await human.instruct("s1", "be short")
        from handlers.control import command_name
        from handlers.held import words_name
        from state.keys import SessionKey

        made = human.sent[0]
        at = one.service.keys.session(SessionKey("testhost", "s1")).put(
            words_name(command_name(made["source"], made["id"]))
        )
        await one.service.client.call(at, "DEL", at)
        assert await prompt(one) == {"message": "be short"}
        assert [what for what, _ in told((await one.replay()).events)] == ["dropped", "delivered"]
