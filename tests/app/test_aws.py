"""The Lambda entry, with the events that API Gateway and Function URLs send."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from handlers.app import LazyApp
from tests.app.processes import ROOT
from tests.app.replica import fresh_prefix
from tests.servers import AnyServer

Invocation = Callable[[dict[str, Any], Any], dict[str, Any]]
Call = Callable[[dict[str, Any]], dict[str, Any]]

PAYLOAD = {"hook_event_name": "SessionStart", "session_id": "s1", "source": "startup"}
TOKEN = "correct-horse"
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", "host": "x.example"}


def v1(method: str, path: str, body: str | None, **query: str) -> dict[str, Any]:
    """API Gateway REST."""
    return {
        "resource": "/{proxy+}",
        "path": path,
        "httpMethod": method,
        "headers": HEADERS,
        "multiValueHeaders": {name: [value] for name, value in HEADERS.items()},
        "queryStringParameters": query or None,
        "multiValueQueryStringParameters": {name: [value] for name, value in query.items()} or None,
        "requestContext": {"identity": {"sourceIp": "203.0.113.7"}, "stage": "prod"},
        "body": body,
        "isBase64Encoded": False,
    }


def v2(method: str, path: str, body: str | None, encoded: bool = False, **query: str) -> dict[str, Any]:
    """API Gateway HTTP API, and Function URLs."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "&".join(f"{name}={value}" for name, value in query.items()),
        "headers": HEADERS,
        "requestContext": {
            "domainName": "id.lambda-url.eu-central-1.on.aws",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "203.0.113.7"},
            "stage": "$default",
        },
        "body": body,
        "isBase64Encoded": encoded,
    }


def _entry(app: LazyApp) -> Invocation:
    # The import makes a loop for its thread, which must not be the tests' own.
    from handlers.aws import entry

    return entry(app)


@pytest.fixture
def call(redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    for name, value in {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_TOKEN": TOKEN,
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }.items():
        monkeypatch.setenv(name, value)
    lazy = LazyApp(serverless=True)
    # A thread of its own, as a container has a loop of its own.
    with ThreadPoolExecutor(1) as container:
        loop = container.submit(asyncio.new_event_loop).result()
        container.submit(asyncio.set_event_loop, loop).result()
        invoke = container.submit(_entry, lazy).result()

        def call(event: dict[str, Any]) -> dict[str, Any]:
            return container.submit(invoke, event, None).result(60)

        yield call
        assert lazy._app is not None
        container.submit(loop.run_until_complete, lazy._app.state.service.stop()).result(30)
        container.submit(loop.close).result()


def test_every_kind_of_event_stores_a_hook(call: Call) -> None:
    body = json.dumps(PAYLOAD)
    encoded = base64.b64encode(body.encode()).decode()
    for event in (v1("POST", "/hook", body), v2("POST", "/hook", body), v2("POST", "/hook", encoded, True)):
        answer = call(event)
        assert (answer["statusCode"], answer["body"]) == (200, "{}")
        headers = answer.get("headers") or {}
        many = {name: values[0] for name, values in (answer.get("multiValueHeaders") or {}).items()}
        assert (headers | many)["aep-stored"] == "yes"
    held = call(v2("GET", "/stream", None, live="0", **{"from": "all"}))
    assert held["statusCode"] == 200
    assert held["body"].count("event: session.started") == 3


def test_what_does_not_work_there_is_refused_plainly(call: Call) -> None:
    answer = call(v2("GET", "/stream", None))
    assert answer["statusCode"] == 501
    assert "live=0" in json.loads(answer["body"])["detail"]


def test_the_schedule_ticks_what_is_due(call: Call) -> None:
    def hook(event: str, **more: object) -> None:
        payload = {"hook_event_name": event, "session_id": "s1", **more}
        assert call(v2("POST", "/hook", json.dumps(payload)))["statusCode"] == 200

    def types() -> list[str]:
        body = call(v2("GET", "/stream", None, live="0", **{"from": "all"}))["body"]
        return [line.removeprefix("event: ") for line in body.splitlines() if line.startswith("event: ")]

    schedule = {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
    assert call(schedule) == {"ticked": 0}
    asked = {"tool_name": "Bash", "tool_call_id": "c1", "tool_input": {"command": "ls"}}
    hook("UserPromptSubmit", prompt="go")
    hook("PreToolUse", **asked)
    hook("PermissionRequest", **asked, turn_id=0, action="run", display="ls?")
    hook("Stop", stop_hook_active=False)
    assert types()[-1] == "run.finished"
    # A request whose answer the vendor never sent is given up two seconds after the run's end.
    time.sleep(2.1)
    assert call(schedule) == {"ticked": 1}
    assert types()[-1] == "attention.resolved"


def test_health_and_refusals(call: Call) -> None:
    assert call(v2("GET", "/readyz", None))["statusCode"] == 200
    event = v2("POST", "/hook", "{}")
    event["headers"] = {"content-type": "application/json"}
    assert call(event)["statusCode"] == 401


def test_importing_the_entry_needs_no_settings() -> None:
    script = "import handlers.aws; assert callable(handlers.aws.handler)"
    subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, check=True, timeout=60
    )
