"""One service with two tenants and an operator, and the same session ids on both sides."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from handlers.tokens import token_digest
from tests.app.replica import Event, Messages, Replica, running
from tests.servers import AnyServer

SESSION = "same"
RIGHTS = {"anna": "emit,watch,steer", "ben": "emit,watch,steer", "ops": "watch,steer,all"}


@dataclass
class Tenant:
    """One who holds a token. Everything it hands in carries its name in a place that can be seen."""

    name: str
    replica: Replica

    @property
    def token(self) -> str:
        return f"token-of-{self.name}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    @property
    def url(self) -> str:
        return self.replica.url

    async def hook(self, event: str, session: str = SESSION, **fields: Any) -> httpx2.Response:
        payload = {"hook_event_name": event, "session_id": session, **fields}
        return await self.replica.client.post("/hook", json=payload, headers=self.headers)

    async def get(self, path: str, **parameters: str) -> httpx2.Response:
        return await self.replica.client.get(path, params=parameters, headers=self.headers)

    async def post(
        self, path: str, body: Any, kind: str = "application/json", **more: str
    ) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.headers | {"content-type": kind, "aep-version": "0.1"} | more
        return await self.replica.client.post(path, content=content, headers=headers)

    async def replay(self, last: str | None = None, **parameters: str) -> Messages:
        """What `/stream` holds for this tenant."""
        asked = {"live": "0"} | ({"from": "all"} if last is None else {}) | parameters
        headers = self.headers | ({} if last is None else {"last-event-id": last})
        response = await self.replica.client.get("/stream", params=asked, headers=headers)
        assert response.status_code == 200, response.text
        found = Messages()
        for line in response.text.split("\n"):
            found.feed(line)
        return found


@dataclass
class House:
    """The service and those who use it."""

    replica: Replica
    anna: Tenant
    ben: Tenant
    ops: Tenant


@pytest.fixture
async def house(redis_server: AnyServer, tmp_path: Path) -> AsyncIterator[House]:
    """A service that holds calls and takes instructions, for two tenants and an operator."""
    file = tmp_path / "tokens"
    lines = [f"{token_digest(f'token-of-{name}')} {name} {rights}\n" for name, rights in RIGHTS.items()]
    file.write_text("".join(lines))
    async with running(
        redis_server,
        tokens_file=str(file),
        control=True,
        instruct=True,
        gate_tools=("Deploy",),
        attention_timeout_ms=20_000,
    ) as replica:
        yield House(replica, *(Tenant(name, replica) for name in RIGHTS))


def whose(events: list[Event]) -> set[str]:
    """The emitters of events of ours."""
    return {event["source"].split("/")[2] for event in events}
