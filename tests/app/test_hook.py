"""`POST /hook` over real HTTP and a real Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.app.replica import Replica, running
from tests.servers import AnyServer

JSON = {"content-type": "application/json"}


async def test_a_hook_becomes_an_event(replica: Replica) -> None:
    response = await replica.hook("SessionStart", source="startup")
    assert response.status_code == 200
    assert response.json() == {}
    assert response.headers["aep-stored"] == "yes"
    held = await replica.replay()
    assert [event["type"] for event in held.events] == ["session.started"]
    event = held.events[0]
    assert event["source"] == "aep://testhost/agent/kimi-code/session/s1"
    assert held.ids == [f"s1:0:{event['seq']}"]
    assert held.comments[-1] == "replay-complete"


async def test_a_pair_is_linked_and_timed(replica: Replica) -> None:
    await replica.hook("UserPromptSubmit", prompt="hi")
    await replica.hook("PreToolUse", tool_name="Bash", tool_call_id="c1", tool_input={"command": "ls"})
    await replica.hook("PostToolUse", tool_name="Bash", tool_call_id="c1", tool_output="x")
    await replica.hook("Stop")
    started, requested, completed, finished = (await replica.replay()).events
    assert requested["cause"] == started["id"]
    assert completed["cause"] == requested["id"]
    assert completed["data"]["duration_ms"] >= 0
    assert started["run"] == requested["run"] == completed["run"] == finished["run"]


async def test_many_at_once_on_one_session(replica: Replica) -> None:
    answers = await asyncio.gather(*(replica.hook("Notification", body=str(n)) for n in range(100)))
    assert {answer.headers["aep-stored"] for answer in answers} == {"yes"}
    positions = [event["seq"] for event in (await replica.replay()).events]
    assert len(positions) == 100
    assert positions == sorted(set(positions))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid-json"),
        (b"{", 400, "invalid-json"),
        (b"\xef\xbb\xbf{}", 400, "invalid-json"),
        (b"NaN", 400, "invalid-json"),
        (b"[1]", 400, "not-an-object"),
        (b'"text"', 400, "not-an-object"),
        (b"[" * 5000 + b"]" * 5000, 400, "invalid-json"),
    ],
)
async def test_what_can_never_be_an_event_is_refused(
    replica: Replica, body: bytes, status: int, code: str
) -> None:
    response = await replica.client.post("/hook", content=body, headers=JSON)
    assert (response.status_code, response.json()["error"]) == (status, code)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_only_json_is_taken(replica: Replica, kind: str) -> None:
    response = await replica.client.post("/hook", content=b"{}", headers={"content-type": kind})
    assert response.status_code == 415


async def test_a_page_of_another_origin_is_refused(replica: Replica) -> None:
    response = await replica.client.post(
        "/hook", content=b"{}", headers=JSON | {"origin": "http://evil.example"}
    )
    assert response.status_code == 403
    response = await replica.client.post("/hook", content=b"{}", headers=JSON | {"host": "evil.example"})
    assert response.status_code == 403


async def test_a_large_body_is_refused_and_a_smaller_one_taken(redis_server: AnyServer) -> None:
    async with running(redis_server, max_body=200_000) as replica:
        payload = {"hook_event_name": "Stop", "session_id": "s", "x": "y" * 150_000}
        assert (await replica.client.post("/hook", json=payload)).status_code == 200
        payload["x"] = "y" * 250_000
        declared = await replica.client.post("/hook", json=payload)
        assert declared.status_code == 413

        async def chunks() -> Any:
            for _ in range(30):
                yield b" " * 10_000

        undeclared = await replica.client.post("/hook", content=chunks(), headers=JSON)
        assert undeclared.status_code == 413
        assert undeclared.json()["error"] == "payload-too-large"


async def test_a_compressed_body_is_refused(replica: Replica) -> None:
    response = await replica.client.post("/hook", content=b"x", headers=JSON | {"content-encoding": "gzip"})
    assert response.status_code == 415


async def test_other_methods_and_paths(replica: Replica) -> None:
    assert (await replica.client.get("/hook")).status_code == 405
    assert (await replica.client.post("/nothing")).status_code == 404


async def test_with_a_token(redis_server: AnyServer) -> None:
    async with running(redis_server, token="correct-horse") as replica:
        assert (await replica.hook("Stop")).status_code == 401
        good = {"authorization": "Bearer correct-horse"}
        payload = {"hook_event_name": "Stop", "session_id": "s"}
        assert (await replica.client.post("/hook", json=payload, headers=good)).status_code == 200
        assert (await replica.client.get("/stream?live=0")).status_code == 401
        assert (await replica.client.get("/stream?live=0&access_token=correct-horse")).status_code == 200
        assert set((await replica.client.get("/healthz")).json()) == {"ok", "relay"}
        assert "counters" in (await replica.client.get("/healthz", headers=good)).json()


async def test_health(replica: Replica) -> None:
    health = (await replica.client.get("/healthz")).json()
    assert (health["ok"], health["relay"]) == (True, False)
    ready = await replica.client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True})


async def test_two_emitters_never_mix(redis_server: AnyServer, tmp_path: Any) -> None:
    from handlers.tokens import token_digest

    tokens = tmp_path / "tokens"
    tokens.write_text(
        f"{token_digest('anna-token')} anna emit\n{token_digest('bob-token')} bob emit\n"
        f"{token_digest('watch-token')} team watch,all\n"
    )
    async with running(redis_server, tokens_file=str(tokens)) as replica:
        for name in ("anna", "bob"):
            headers = {"authorization": f"Bearer {name}-token"}
            payload = {"hook_event_name": "UserPromptSubmit", "session_id": "same", "prompt": name}
            response = await replica.client.post("/hook", json=payload, headers=headers)
            assert response.headers["aep-stored"] == "yes"
        held = await replica.replay(access_token="watch-token", filter=json.dumps({"session": "same"}))
        assert [event["source"] for event in held.events] == [
            "aep://anna/agent/kimi-code/session/same",
            "aep://bob/agent/kimi-code/session/same",
        ]
        assert held.events[0]["run"] != held.events[1]["run"]
