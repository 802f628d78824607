"""The short way of a commit, and every way in which it turns into the long one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.clock import SystemClock
from handlers.counters import Counters
from handlers.engine import Engine, Outcome
from handlers.mapping.hooks import map_hook
from state.connection import Client
from state.errors import Unanswered, Unreachable
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Sessions

KEY = SessionKey("host", "s1")


class Counted(Sessions):
    """Sessions that count their calls, and lose or withhold an answer where they are told to."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self.calls: Counter[str] = Counter()
        self.lose: Exception | None = None
        self.hold: asyncio.Event | None = None

    async def load(self, key: SessionKey) -> Any:
        self.calls["load"] += 1
        return await super().load(key)

    async def commit(self, key: SessionKey, **step: Any) -> Any:
        self.calls["commit"] += 1
        return await super().commit(key, **step)

    def start(self, form: Any, **step: Any) -> Any:
        reply = super().start(form, **step)
        if reply is not None:
            self.calls["start"] += 1
        if reply is None or (self.lose is None and self.hold is None):
            return reply
        lost, hold, self.lose, self.hold = self.lose, self.hold, None, None

        async def late() -> Any:
            answer = await reply
            if hold is not None:
                await hold.wait()
            if lost is not None:
                raise lost
            return answer

        return asyncio.ensure_future(late())


class Bench:
    """One replica's engine on the server of the test."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.sessions = Counted(client, keys)
        self.counters = Counters()
        self.engine = Engine(self.sessions, clock=SystemClock(), counters=self.counters)

    async def tell(self, word: str, event: str = "Notification") -> Outcome:
        payload = {"hook_event_name": event, "session_id": KEY.session, "notification_type": word}
        moment = map_hook(payload, Posture())  # type: ignore[arg-type]
        now = time.time_ns() // 1_000_000
        deadline = time.monotonic() + self.sessions.client.limits.write
        return await self.engine.submit(KEY, moment, at_ms=now, deadline=deadline)

    def taken(self) -> dict[str, int]:
        """The calls since the last look."""
        calls = dict(self.sessions.calls)
        self.sessions.calls.clear()
        return calls


async def words(client: Client, keys: Keys) -> list[str]:
    page = await Replay(client, keys).read(KEY, 0, 1000)
    return [body.decode().split('"subject":"')[1].split('"')[0] for _, body in page.entries]


@pytest.fixture
async def bench(client: Client, keys: Keys) -> Bench:
    made = Bench(client, keys)
    assert (await made.tell("first")).stored == "yes"
    assert made.taken() == {"load": 1, "commit": 1}
    return made


async def test_a_right_guess_is_one_call(bench: Bench, client: Client, keys: Keys) -> None:
    for number in range(3):
        assert await bench.tell(f"n{number}") == Outcome(({},), "yes")
        assert bench.taken() == {"start": 1}
    assert await words(client, keys) == ["first", "n0", "n1", "n2"]
    assert bench.counters["moments.stored"] == bench.counters["events.stored"] == 4


async def test_a_wrong_guess_learns_the_truth_from_its_refusal(
    bench: Bench, client: Client, keys: Keys
) -> None:
    other = Bench(client, keys)
    await other.tell("theirs")
    assert (await bench.tell("ours")).stored == "yes"
    assert bench.taken() == {"start": 1, "commit": 1}
    assert bench.counters["commits.conflicts"] == 1
    assert await words(client, keys) == ["first", "theirs", "ours"]
    await bench.tell("again")
    assert bench.taken() == {"start": 1}


@pytest.mark.parametrize("error", [Unanswered("reset"), Unreachable("gone")])
async def test_a_lost_answer_doubles_nothing(
    bench: Bench, client: Client, keys: Keys, error: Exception
) -> None:
    # The commit stands; the long way asks again with the id that it went by.
    bench.sessions.lose = error
    assert (await bench.tell("once")).stored == "yes"
    assert (await bench.tell("then")).stored == "yes"
    assert await words(client, keys) == ["first", "once", "then"]


async def test_who_arrives_meanwhile_goes_next_as_one_batch(bench: Bench, client: Client, keys: Keys) -> None:
    hold = bench.sessions.hold = asyncio.Event()
    first = asyncio.ensure_future(bench.tell("a"))
    await asyncio.sleep(0)
    rest = [asyncio.ensure_future(bench.tell(word)) for word in "bcd"]
    await asyncio.sleep(0.01)
    hold.set()
    assert {outcome.stored for outcome in await asyncio.gather(first, *rest)} == {"yes"}
    assert bench.taken() == {"start": 1, "commit": 1}
    assert await words(client, keys) == ["first", *"abcd"]


async def test_a_caller_that_is_cancelled_holds_up_nobody(bench: Bench, client: Client, keys: Keys) -> None:
    bench.sessions.hold = asyncio.Event()
    first = asyncio.ensure_future(bench.tell("a"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(bench.tell("b"))
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await second).stored == "yes"
    # What the guess had become is not known, so it was read.
    assert bench.taken() == {"start": 1, "load": 1, "commit": 1}
    assert await words(client, keys) == ["first", "a", "b"]


async def test_a_run_is_one_story_by_either_way(bench: Bench, client: Client, keys: Keys) -> None:
    other = Bench(client, keys)
    for number, event in enumerate(["UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"]):
        await (bench if number % 2 else other).tell("x", event)
    page = await Replay(client, keys).read(KEY, 0, 1000)
    text = b"\n".join(body for _, body in page.entries)
    assert text.count(b'"type":"run.started"') == text.count(b'"type":"run.finished"') == 1
