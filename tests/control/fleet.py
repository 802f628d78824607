"""Replicas as processes of their own, with control on, for what only real processes show."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.app.processes import Process, processes
from tests.app.replica import Event, Messages, fresh_prefix
from tests.control.desk import TOKEN, Hold, hold
from tests.servers import AnyServer


@dataclass
class Node:
    """One process, as the tests' clients see it."""

    process: Process
    client: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return self.process.url

    async def hook(self, event: str, session: str = "s1", **fields: Any) -> httpx2.Response:
        payload = {"hook_event_name": event, "session_id": session, **fields}
        return await self.client.post("/hook", json=payload)

    def hold(self, session: str = "s1", call: str | None = None, **more: Any) -> Hold:
        return hold(self, session, call=call, **more)

    async def events(self, session: str | None = None) -> list[Event]:
        """What is held of a session, or of all."""
        parameters = {"from": "all", "live": "0"}
        if session is not None:
            parameters["filter"] = json.dumps({"session": session})
        response = await self.client.get("/stream", params=parameters)
        assert response.status_code == 200, response.text
        messages = Messages()
        for line in response.text.split("\n"):
            messages.feed(line)
        return messages.events

    async def figures(self) -> dict[str, Any]:
        """`/healthz` with its counts."""
        answer: dict[str, Any] = (await self.client.get("/healthz")).json()
        return answer


@contextlib.asynccontextmanager
async def fleet(server: AnyServer, count: int = 2, **environment: str) -> AsyncIterator[Sequence[Node]]:
    """`count` replicas of one deployment."""
    made = {
        "AEP_REDIS_URL": server.url,
        "AEP_SHARDS": str(server.shards),
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_TOKEN": TOKEN,
        "AEP_KIMI_CONTROL": "1",
        "AEP_INSTRUCT": "1",
        "AEP_EMITTER": "testhost",
        "AEP_ATTENTION_TIMEOUT_MS": "20000",
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }
    headers = {"authorization": f"Bearer {TOKEN}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
    with processes(count, made | environment) as started:
        async with contextlib.AsyncExitStack() as stack:
            yield [
                Node(
                    process,
                    await stack.enter_async_context(
                        httpx2.AsyncClient(base_url=process.url, timeout=90, headers=headers, limits=limits)
                    ),
                )
                for process in started
            ]
