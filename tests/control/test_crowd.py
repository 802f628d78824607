"""Many holders that go in one moment: their gates are closed a few at a time, and nobody waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handlers.engine import Outcome
from handlers.lifecycle.gates import Close
from tests.app.replica import until
from tests.control.desk import about, desk, hold, replicas
from tests.servers import AnyServer

CROWD = 90


async def test_a_crowd_that_hangs_up_is_closed_a_few_at_a_time(
    redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(redis_server, 2) as (one, other), desk(other) as human:
        submit = one.service.engine.submit
        at_once = most = 0

        async def counted(key: Any, given: Any, **more: Any) -> Outcome:
            nonlocal at_once, most
            closing = isinstance(given, Close)
            at_once += closing
            most = max(most, at_once)
            try:
                return await submit(key, given, **more)
            finally:
                at_once -= closing

        monkeypatch.setattr(one.service.engine, "submit", counted)
        held = [hold(one, f"s{number}") for number in range(CROWD)]
        requests = [await human.request(call.call) for call in held]
        kept = hold(one, "kept")
        last = await human.request(kept.call)
        await asyncio.gather(*(call.hang_up() for call in held))
        await human.answer(last, option="deny")
        assert await kept.verdict() is not None
        for request in requests:
            assert (await human.terminal(request))["data"]["resolution"] == "dismissed"
        await until(lambda: len(one.service.holding) == 0 and one.service.holding.vigil.debts == 0)
        assert 1 < most <= 65, "an answer waits for none of them"
        assert about((await other.replay()).events, last) == [
            "requested",
            "answered deny",
            "resolved answered",
        ]
