"""Three replicas behind a proxy, the traffic, and the judgement of what it left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from handlers.aep.streams import StreamChecker
from tests.app.processes import Process
from tests.app.replica import Messages, fresh_prefix
from tests.chaos.proxy import Proxy
from tests.chaos.traffic import HOOK_SECONDS, Agent, Editor, Ledger, Page

SECONDS = float(os.environ.get("AEP_CHAOS_SECONDS", "20"))
RATE = 200
AGENTS = 30


class Fleet:
    """Replicas that may die at any moment."""

    def __init__(self, environment: dict[str, str], proxy: Proxy) -> None:
        self._environment = environment
        self.proxy = proxy
        self.replicas: list[Process] = []
        self.deaths: Counter[str] = Counter()

    async def start(self, count: int) -> None:
        for _ in range(count):
            self.replicas.append(await asyncio.to_thread(Process, self._environment))
        self._publish()

    async def replace(self, number: int, *, gently: bool) -> None:
        """End one replica and start another."""
        old = self.replicas[number]
        self.deaths["SIGTERM" if gently else "SIGKILL"] += 1
        await asyncio.to_thread(old.terminate if gently else old.kill)
        self.replicas[number] = await asyncio.to_thread(Process, self._environment)
        self._publish()

    async def stop(self) -> None:
        for replica in self.replicas:
            if replica.process.poll() is None:
                await asyncio.to_thread(replica.kill)

    def _publish(self) -> None:
        self.proxy.backends = [replica.url for replica in self.replicas]


@asynccontextmanager
async def fleet(redis_url: str, **settings: str) -> AsyncIterator[Fleet]:
    """Three replicas on one Redis."""
    proxy = Proxy()
    await proxy.start()
    environment = {
        "AEP_REDIS_URL": redis_url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_EMITTER": "chaos",
        "AEP_BUFFER": "100000",
        **settings,
    }
    replicas = Fleet(environment, proxy)
    try:
        await replicas.start(3)
        yield replicas
    finally:
        await replicas.stop()
        await proxy.stop()


async def run(replicas: Fleet, misfortune: Callable[[], Awaitable[None]]) -> tuple[Ledger, list[Any]]:
    """Traffic for `SECONDS` while replicas die and `misfortune` happens; the ledger, and the other peers.

    Every session is ended afterwards, when all is well again.
    """
    ledger = Ledger()
    generator = random.Random(7)
    url = replicas.proxy.url
    agents = [Agent(f"agent-{n}", url, ledger, random.Random(n)) for n in range(AGENTS)]
    editors = [Editor(f"editor-{n}", url, ledger) for n in range(3)]
    pages = [Page(f"page-{n}", url, ledger) for n in range(3)]
    until = time.monotonic() + SECONDS

    async def pause() -> None:
        await asyncio.sleep(generator.expovariate(RATE / AGENTS))

    async def agent_work(agent: Agent) -> None:
        await agent.hook("SessionStart", f"start:{agent.session}", source="startup")
        while time.monotonic() < until:
            await agent.turn(pause)

    async def peer_work(peer: Editor | Page) -> None:
        while time.monotonic() < until:
            await peer.turn()
            await asyncio.sleep(generator.uniform(0.1, 0.5))

    async def deaths() -> None:
        while time.monotonic() < until - 3:
            await asyncio.sleep(generator.uniform(2, 4))
            await replicas.replace(generator.randrange(3), gently=generator.random() < 0.3)

    for editor in editors:
        await editor.begin()
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent_work(agent))
        for peer in (*editors, *pages):
            group.create_task(peer_work(peer))
        group.create_task(deaths())

        async def happen() -> None:
            await misfortune()

        group.create_task(happen())
    for agent in agents:
        await agent.end()
    for editor in editors:
        await editor.end()
    return ledger, [*editors, *pages]


async def settled(url: str) -> list[dict[str, Any]]:
    """Every event, once every agent's session has ended: one that ends in a run waits a moment for its end.

    Raises TimeoutError when a session does not end within its stated bounds and a generous margin.
    """
    async with asyncio.timeout(30):
        while True:
            events = await everything(url)
            ended = {event["session"] for event in events if event["type"] == "session.ended"}
            if len([name for name in ended if name.startswith("agent-")]) == AGENTS:
                return events
            await asyncio.sleep(0.5)


async def everything(url: str) -> list[dict[str, Any]]:
    """Every event that the service holds, each session in order."""
    messages = Messages()
    events: list[dict[str, Any]] = []
    async with (
        httpx2.AsyncClient(timeout=120) as client,
        client.stream("GET", f"{url}/stream", params={"from": "all", "live": "0"}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))
            messages.feed(line)
    return events


def marks(event: dict[str, Any]) -> str | None:
    """The mark of the hook that an event came from, where it has one of its own."""
    if event["type"] == "tool.requested" and event["session"].startswith("agent-"):
        return str(event["data"]["tool"]["call_id"])
    if event["type"] == "progress.status":
        return str(event["subject"])
    return None


def judge(ledger: Ledger, peers: list[Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Hold the events to every promise but the one on loss, and count."""
    checker = StreamChecker()
    problems = [problem for event in events for problem in checker.check(event)]
    assert problems == []
    assert checker.open_requests() == [], "a request has no terminal after its session's end"
    positions: dict[str, int] = {}
    for event in events:
        assert event["seq"] > positions.get(event["source"], -1), "positions must rise"
        positions[event["source"]] = event["seq"]
    seen = Counter(mark for mark in map(marks, events) if mark is not None)
    assert [mark for mark, times in seen.items() if times > 1] == [], "a hook became two events"
    assert not seen.keys() & ledger.marks["no"], "what was said not to be stored is there"
    for peer in peers:
        runs = Counter(
            event["type"]
            for event in events
            if event["session"] == peer.session and event["type"].startswith("run.")
        )
        assert (runs["run.started"], runs["run.finished"]) == (peer.turns, peer.turns), (peer.session, runs)
    assert max(ledger.waits) < HOOK_SECONDS + 1, "an agent waited past its bound"
    traced = {mark for mark in ledger.marks["yes"] if mark.startswith(("call:", "note:"))}
    return {
        "hooks": len(ledger.waits),
        **{stored: len(found) for stored, found in ledger.marks.items()},
        "events": len(events),
        "lost though stored": len(traced - seen.keys()),
        "unknown but there": len(seen.keys() & ledger.marks["unknown"]),
        "batches": dict(ledger.batches),
        "wait ms p50, p99, max": [round(ledger.wait(share)) for share in (0.5, 0.99, 1)],
    }
