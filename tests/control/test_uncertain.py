"""Commits whose answer never came: what the hook is told and what the stream says still agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from handlers.engine import Outcome
from handlers.lifecycle.gates import Close, Hold
from handlers.lifecycle.instructions import Deliver
from tests.app.replica import Replica, until
from tests.control.desk import about, desk, hold, replicas
from tests.control.test_steering import prompt, told
from tests.servers import AnyServer

Fate = Callable[[Any], str | None]


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Callable[[Replica, Fate], None]:
    """Decide what becomes of submissions: `applied` or `lost` without an answer, `refused`, or None."""

    def install(replica: Replica, decide: Fate) -> None:
        submit = replica.service.engine.submit

        async def changed(key: Any, given: Any, **more: Any) -> Outcome:
            what = decide(given)
            if what is None:
                return await submit(key, given, **more)
            if what == "applied":
                await submit(key, given, **more)
            return Outcome(({},), "no" if what == "refused" else "unknown")

        monkeypatch.setattr(replica.service.engine, "submit", changed)

    return install


def once(kind: type, what: str, times: int = 1) -> Fate:
    left = [times]

    def decide(given: Any) -> str | None:
        if isinstance(given, kind) and left[0] > 0:
            left[0] -= 1
            return what
        return None

    return decide


@pytest.mark.parametrize("what", ["applied", "lost", "refused"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_close_is_tried_until_it_is_known(
    redis_server: AnyServer, fate: Callable[[Replica, Fate], None], what: str, times: int
) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        fate(one, once(Close, what, times))
        held = hold(one)
        request = await human.request(held.call)
        await human.answer(request, option="deny", text="no")
        assert await held.verdict() == "no"
        assert about((await other.replay()).events, request) == [
            "requested",
            "answered deny",
            "resolved answered",
        ]


@pytest.mark.parametrize("what", ["applied", "lost", "refused"])
@pytest.mark.parametrize(
    ("answer", "reason"), [({"option": "deny", "text": "no"}, "no"), ({"option": "allow"}, None)]
)
async def test_a_decision_with_its_close_is_tried_until_it_is_known(
    redis_server: AnyServer,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: dict[str, str],
    reason: str | None,
) -> None:
    async with replicas(redis_server) as (one, other), desk(one) as human:
        apply = one.service.engine.apply
        tried: list[Any] = []

        async def changed(key: Any, given: Any, **more: Any) -> Outcome:
            if len(given) < 2 or tried:
                return await apply(key, given, **more)
            tried.append(given)
            if what == "applied":
                await apply(key, given, **more)
            return Outcome(({},) * len(given), "no" if what == "refused" else "unknown")

        monkeypatch.setattr(one.service.engine, "apply", changed)
        held = hold(one)
        request = await human.request(held.call)
        ack = await human.answer(request, **answer)
        assert ack["type"] == "control.accepted"
        assert await held.verdict() == reason
        assert len(tried) == 1
        events = (await other.replay()).events
        assert about(events, request) == ["requested", f"answered {answer['option']}", "resolved answered"]
        assert [event["type"] for event in events].count("control.accepted") == 1


async def test_an_answer_that_lost_to_another_process_closes_nothing(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(one) as human, desk(other) as rival:
        held = hold(one)
        request = await human.request(held.call)
        await rival.request(held.call)
        # The holder hears nothing of the rival's answer before its own desk speaks.
        one.service.holding.wake, wake = (lambda key: None), one.service.holding.wake  # type: ignore[method-assign]
        assert (await rival.answer(request, option="allow"))["type"] == "control.accepted"
        ack = await human.answer(request, option="deny", text="no")
        assert ack["type"] == "control.rejected"
        assert ack["data"]["code"] in ("already-decided", "closed")
        assert await held.verdict() is None
        one.service.holding.wake = wake  # type: ignore[method-assign]
        assert about((await other.replay()).events, request) == [
            "requested",
            "answered allow",
            "resolved answered",
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason", "stories"),
    [
        # It may stand in the stream, so it is done.
        ("applied", "no", [["requested", "answered deny", "resolved answered"]]),
        ("lost", "no", [["requested", "resolved dismissed"], ["requested", "timeout"]]),
        # It certainly does not, so it is not.
        ("refused", None, [["requested", "resolved dismissed"], ["requested", "timeout"]]),
    ],
)
async def test_what_the_stream_may_say_is_what_the_hook_is_told(
    redis_server: AnyServer,
    fate: Callable[[Replica, Fate], None],
    what: str,
    reason: str | None,
    stories: list[list[str]],
) -> None:
    async with replicas(redis_server, attention_timeout_ms=1_000) as (one, other), desk(other) as human:
        silent = True
        fate(one, lambda given: what if isinstance(given, Close) and silent else None)
        held = hold(one)
        request = await human.request(held.call)
        await human.answer(request, option="deny", text="no")
        assert await held.verdict() == reason
        silent = False
        await human.terminal(request)
        assert about((await other.replay()).events, request) in stories


@pytest.mark.parametrize("what", ["applied", "lost"])
async def test_a_gate_that_may_not_be_open_holds_nobody(
    redis_server: AnyServer, fate: Callable[[Replica, Fate], None], what: str
) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        fate(one, once(Hold, what))
        held = hold(one)
        assert await held.verdict() is None
        assert len(one.service.holding) == 0
        if what == "applied":
            request = await human.request(held.call)
            assert (await human.terminal(request))["data"]["resolution"] == "dismissed"
            await asyncio.sleep(1.5)
            assert about((await other.replay()).events, request) == ["requested", "resolved dismissed"]
        await until(lambda: not one.service.holding.vigil.debts)


@pytest.mark.parametrize("what", ["applied", "lost"])
async def test_an_instruction_that_may_have_been_told_as_delivered_comes_again(
    redis_server: AnyServer, fate: Callable[[Replica, Fate], None], what: str
) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await prompt(one)
        await human.instruct("s1", "use staging")
        fate(one, once(Deliver, what))
        assert await prompt(one) == {}
        if what == "applied":
            await human.wait(lambda frame: frame["type"] == "x.kimi-code.instruction.returned")
        assert await prompt(one) == {"message": "use staging"}
        words = [word for word, _ in told((await one.replay()).events)]
        assert words == (["delivered", "returned", "delivered"] if what == "applied" else ["delivered"])
