"""Limits of a token: its rate and the size of its bodies. An agent never notices them."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from handlers.errors import SettingsError
from handlers.rates import Rates
from handlers.tokens import OPEN_RIGHTS, Principal, parse_tokens, token_digest
from tests.app.duplex import duplex, event
from tests.app.replica import Replica, running
from tests.servers import AnyServer

LINES = {"content-type": "application/x-ndjson", "aep-version": "0.1"}


def principal(rate: int | None = None, name: str = "a") -> Principal:
    return Principal("anna", OPEN_RIGHTS, True, name=name, rate=rate)


def test_a_bucket() -> None:
    rates = Rates(2)
    for _ in range(10):
        assert rates.wait(principal(), 100.0) == 0
        rates.take(principal(), 100.0)
    assert rates.wait(principal(), 100.0) == 0.5
    assert rates.wait(principal(name="another"), 100.0) == 0
    assert rates.wait(principal(), 100.5) == 0
    # One that was overdrawn by a large batch pays for it.
    rates.take(principal(), 100.5, 1 + 200)
    assert rates.wait(principal(), 100.5) == pytest.approx(100.5)
    assert rates.wait(principal(), 201.1) == 0


def test_no_limit() -> None:
    rates = Rates(0)
    rates.take(principal(), 1.0, 10**9)
    assert rates.wait(principal(), 1.0) == 0
    rates = Rates(5)
    rates.take(principal(0), 1.0, 10**9)
    assert rates.wait(principal(0), 1.0) == 0


def test_limits_in_the_file() -> None:
    grants = parse_tokens(
        f"{token_digest('a')} anna emit rate=50 body=1000 Anna's laptop\n"
        f"{token_digest('b')} ben emit,watch rate=0\n{token_digest('c')} cid emit rated=5\n"
    )
    found = [(entry.rate, entry.body, entry.label) for entry in grants.values()]
    assert found == [(50, 1000, "Anna's laptop"), (0, None, ""), (None, None, "rated=5")]
    assert all(entry.name == digest[:19] for digest, entry in grants.items())
    with pytest.raises(SettingsError, match="line 1: rate is a number"):
        parse_tokens(f"{token_digest('a')} anna emit rate=fast")


async def test_over_the_rate(redis_server: AnyServer, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token_digest('token-a')} anna emit,watch rate=1\n{token_digest('token-b')} ben emit\n")
    async with running(
        redis_server, tokens_file=str(file), headers={"authorization": "Bearer token-a"}
    ) as replica:
        stored = [(await replica.hook("Notification", body="x")).headers["aep-stored"] for _ in range(40)]
        assert stored[:10] == ["yes"] * 10
        assert stored.count("no") >= 20
        over = await replica.hook("PreToolUse", tool_name="Bash", tool_call_id="c", tool_input={})
        assert (over.status_code, over.json()) == (200, {})
        assert replica.service.counters["hooks.limited"] == stored.count("no") + 1
        for path in ("/events", "/frames/web", "/frames/acp"):
            answer = await replica.client.post(path, content=json.dumps(event("s", 1)), headers=LINES)
            assert (answer.status_code, answer.json()["error"]) == (429, "too-many-events"), path
            assert int(answer.headers["retry-after"]) >= 1
        # The other's bucket is another one.
        other = {"authorization": "Bearer token-b"}
        payload = {"hook_event_name": "Stop", "session_id": "s"}
        answer = await replica.client.post("/hook", json=payload, headers=other)
        assert answer.headers["aep-stored"] == "yes"


async def test_a_batch_is_charged_by_its_events(redis_server: AnyServer) -> None:
    async with running(redis_server, rate=1, token="correct-horse") as replica:
        headers = LINES | {"authorization": "Bearer correct-horse"}
        body = "".join(json.dumps(event("s", number)) + "\n" for number in range(200))
        assert (await replica.client.post("/events", content=body, headers=headers)).status_code == 202
        again = await replica.client.post("/events", content=body, headers=headers)
        assert again.status_code == 429
        assert int(again.headers["retry-after"]) > 100


async def test_a_connection_is_read_more_slowly(redis_server: AnyServer) -> None:
    async with running(redis_server, rate=20) as replica, duplex(replica.url) as emitter:
        await emitter.hello("emitter")
        started = asyncio.get_running_loop().time()
        for number in range(120):
            await emitter.send(event("s", number))
        await emitter.send({"type": "ping", "t": 1})
        await emitter.until(lambda frame: frame["type"] == "pong", 60)
        assert asyncio.get_running_loop().time() - started >= 0.9
        assert not [frame for frame in emitter.frames if frame["type"] == "error"]
        assert len((await replica.replay()).events) == 120


async def test_a_token_has_its_own_largest_body(redis_server: AnyServer, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token_digest('token-a')} anna emit body=2000\n{token_digest('token-b')} ben emit\n")
    async with running(redis_server, tokens_file=str(file)) as replica:
        payload = {"hook_event_name": "Stop", "session_id": "s", "x": "y" * 3_000}
        for token, status in (("token-a", 413), ("token-b", 200)):
            headers = {"authorization": f"Bearer {token}"}
            assert (await replica.client.post("/hook", json=payload, headers=headers)).status_code == status


async def test_refusals_are_logged_without_secrets(
    redis_server: AnyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "handlers.audit")
    file = tmp_path / "tokens"
    file.write_text(f"{token_digest('token-a')} anna emit\n")
    async with running(redis_server, tokens_file=str(file)) as replica:
        wrong = {"authorization": "Bearer not-the-token"}
        assert (await replica.client.get("/stream", headers=wrong)).status_code == 401
        right = {"authorization": "Bearer token-a"}
        path = "/stream?access_token=token-a&filter=secret-words"
        assert (await replica.client.get(path, headers=right)).status_code == 403
        assert (await replica.client.post("/hook", content=b"secret-words", headers=wrong)).status_code == 401
        for _ in range(100):
            await replica.client.post("/hook", content=b"{}", headers=wrong)
        assert replica.service.counters["refused.unauthorized"] == 102
    text = caplog.text
    assert "refused: 401 unauthorized GET /stream from 127.0.0.1 as -" in text
    assert (
        f"refused: 403 forbidden GET /stream from 127.0.0.1 as anna ({token_digest('token-a')[:19]})" in text
    )
    assert "refused: 401 unauthorized POST /hook" in text
    for secret in ("token-a)", "not-the-token", "secret-words", "access_token"):
        assert secret not in text
    assert len(caplog.records) < 100


async def test_request_ids(replica: Replica) -> None:
    payload = {"hook_event_name": "Stop", "session_id": "s"}
    given = {"x-request-id": "req-1.a/b"}
    for response in (
        await replica.client.post("/hook", json=payload, headers=given),
        await replica.client.post(
            "/hook", content=b"{", headers=given | {"content-type": "application/json"}
        ),
        await replica.client.get("/healthz", headers=given),
        await replica.client.get("/nothing", headers=given),
    ):
        assert response.headers["x-request-id"] == "req-1.a/b"
    for bad in ("a b", "x" * 65, '"><script>', "é"):
        response = await replica.client.get("/healthz", headers={"x-request-id": bad.encode("latin-1")})
        assert len(response.headers["x-request-id"]) == 16
