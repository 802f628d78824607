"""Posting: what counts as a receipt, what is tried again, what is given up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import pytest

from deploy.relay.posts import Posts
from deploy.relay.scheduled import handler, post
from deploy.relay.transport import Address, LeaseLate, Parcel, RelayError, Timing, Unconfirmed, Unwelcome
from handlers.counters import Counters
from handlers.errors import SettingsError
from state.keys import SessionKey
from tests.app.replica import running
from tests.relay.lab import QUICK, TOKEN, relays, same
from tests.relay.test_link import work
from tests.servers import AnyServer

KEY = SessionKey("host", "s1")


def parcels(count: int) -> list[Parcel]:
    return [Parcel(KEY, number, json.dumps({"id": f"e{number}"}).encode()) for number in range(count)]


class Desk:
    """An endpoint as a function, and the posts it took."""

    def __init__(self, answer: Callable[[list[str]], httpx2.Response]) -> None:
        self.answer = answer
        self.taken: list[str] = []
        self.requests: list[httpx2.Request] = []
        self.counters = Counters()
        self.late = False
        self.posts = Posts(
            Address.parse("https://relay.example"), TOKEN, self._guard, self.counters, Timing()
        )
        self.posts._client = httpx2.AsyncClient(
            transport=httpx2.MockTransport(self._handle), headers=self.posts._client.headers
        )

    def _guard(self) -> None:
        if self.late:
            raise LeaseLate("late")

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if request.method == "GET":
            return httpx2.Response(200, json={"aep": ["0.1"]})
        names = [json.loads(line)["id"] for line in request.content.split(b"\n") if line]
        response = self.answer(names)
        if response.status_code == 202:
            self.taken += names
        return response


async def test_a_batch_in_order_with_version_and_token() -> None:
    desk = Desk(lambda names: httpx2.Response(202))
    await desk.posts.open()
    assert desk.posts.heard == 0.0
    await desk.posts.deliver(parcels(3))
    assert desk.posts.heard > 0.0
    assert desk.taken == ["e0", "e1", "e2"]
    headers = desk.requests[-1].headers
    assert str(desk.requests[-1].url) == "https://relay.example/events"
    assert headers["aep-version"] == "0.1"
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["content-type"] == "application/x-ndjson"


async def test_a_line_that_is_refused_is_left_out() -> None:
    def answer(names: list[str]) -> httpx2.Response:
        for number, name in enumerate(names):
            if name in ("e2", "e4"):
                return httpx2.Response(400, json={"error": "invalid-event", "line": number})
        return httpx2.Response(202)

    desk = Desk(answer)
    await desk.posts.deliver(parcels(6))
    assert desk.taken == ["e0", "e1", "e3", "e5"]
    assert desk.counters["relay.refused"] == 2


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_the_one_that_is_refused_is_looked_for(status: int) -> None:
    desk = Desk(lambda names: httpx2.Response(status if "e5" in names else 202))
    await desk.posts.deliver(parcels(9))
    assert desk.taken == [f"e{number}" for number in range(9) if number != 5]
    assert desk.counters[f"relay.refused.{status}"] == 1


async def test_a_source_that_is_the_relays_own_is_refused_line_by_line() -> None:
    desk = Desk(lambda names: httpx2.Response(403, json={"error": "forbidden-source", "line": 0}))
    await desk.posts.deliver(parcels(3))
    assert desk.counters["relay.refused.403"] == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unwelcome), (403, Unwelcome), (404, Unwelcome), (301, Unwelcome), (426, Unwelcome),
     (415, Unwelcome), (429, Unconfirmed), (500, RelayError), (503, RelayError), (408, Unconfirmed)],
)  # fmt: skip
async def test_what_is_no_receipt(status: int, kind: type[RelayError]) -> None:
    desk = Desk(lambda names: httpx2.Response(status))
    with pytest.raises(RelayError) as caught:
        await desk.posts.deliver(parcels(3))
    assert type(caught.value) is kind
    assert desk.counters["relay.refused"] == 0
    assert len(desk.requests) == 1


async def test_silence_is_no_receipt() -> None:
    def answer(names: list[str]) -> httpx2.Response:
        raise httpx2.ReadTimeout("slow")

    with pytest.raises(Unconfirmed):
        await Desk(answer).posts.deliver(parcels(1))

    def broken(names: list[str]) -> httpx2.Response:
        raise httpx2.ConnectError("gone")

    with pytest.raises(RelayError, match="gone"):
        await Desk(broken).posts.deliver(parcels(1))


async def test_nothing_is_posted_on_a_late_lease() -> None:
    desk = Desk(lambda names: httpx2.Response(202))
    desk.late = True
    with pytest.raises(LeaseLate):
        await desk.posts.deliver(parcels(1))
    assert desk.requests == []


async def test_the_scheduled_function(redis_server: AnyServer) -> None:
    async with running(redis_server) as service, relays(redis_server) as relay:
        await work(service, "s1")
        settings = replace(service.service.settings, relay_url=relay.url, relay_token=TOKEN)
        answer = await post(settings, 30, QUICK)
        assert answer["done"]
        assert answer["sent"] > 5
        await same(service, relay)
        assert await post(settings, 30, QUICK) == {"done": True, "sent": 0}


def test_the_scheduled_function_needs_a_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AEP_RELAY_URL", raising=False)
    with pytest.raises(SettingsError, match="AEP_RELAY_URL"):
        handler({}, SimpleNamespace(get_remaining_time_in_millis=lambda: 5_000))
