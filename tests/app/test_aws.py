"""The Lambda entry, with the events that API Gateway and Function URLs send."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.app.aws_container import Container, hook_ask
from tests.app.aws_events import (
    EVERY,
    TOKEN,
    Ask,
    Builder,
    answered,
    body_of,
    function_url,
    http_v2,
    replay_of,
    rest,
    schedule,
    socket_connect,
)
from tests.app.forgetful import forgetful
from tests.app.processes import ROOT, processes
from tests.app.replica import fresh_prefix
from tests.servers import AnyServer, Server

STARTED = {"source": "startup"}
EACH = pytest.mark.parametrize("via", EVERY.values(), ids=EVERY)


def environment(server: AnyServer) -> dict[str, str]:
    return {
        "AEP_REDIS_URL": server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(server.shards),
        "AEP_TOKEN": TOKEN,
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }


@pytest.fixture
def variables(redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the function, which is that of this process too."""
    made = environment(redis_server)
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def container(variables: dict[str, str]) -> Iterator[Container]:
    made = Container()
    yield made
    made.close()


@EACH
@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "base64"])
def test_every_kind_of_event_stores_a_hook(container: Container, via: Builder, encoded: bool) -> None:
    ask = hook_ask("UserPromptSubmit", "größe", encoded=encoded, prompt="größer als 3 €")
    answer = container.call(via(ask))
    assert (answer["statusCode"], body_of(answer)) == (200, "{}")
    assert answered(answer)["aep-stored"] == "yes"
    assert [event["type"] for event in container.events("größe", via=via)][-1] == "run.started"


@EACH
def test_every_kind_of_event_takes_a_batch(container: Container, via: Builder) -> None:
    lines = [
        {"aep": "0.1", "id": f"01J{number:023d}", "type": "run.started", "time": "2026-03-10T00:00:00.000Z"}
        | {"source": "aep://other/agent/x/session/f1", "agent": "x", "session": "f1", "seq": number}
        | {"epoch": 0, "run": f"r{number}", "severity": "info", "capture": "metadata", "data": {}}
        for number in range(3)
    ]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    ask = Ask("POST", "/events", body, content_type="application/x-ndjson", encoded=True)
    event = via(ask)
    for headers in (event["headers"], event.get("multiValueHeaders")):
        if headers is not None:
            headers["AEP-Version"] = "0.1" if headers is event["headers"] else ["0.1"]
    answer = container.call(event)
    assert answer["statusCode"] in (200, 202), answer
    assert [event["run"] for event in container.events("f1", via=via)] == ["r0", "r1", "r2"]


def test_an_answer_that_the_platform_would_drop_is_refused_plainly(container: Container) -> None:
    for run in range(3):
        event = {"aep": "0.1", "type": "run.started", "time": "2026-03-10T00:00:00.000Z", "agent": "x"}
        event |= {"source": "aep://other/agent/x/session/big", "session": "big", "epoch": 0, "run": f"r{run}"}
        event |= {"severity": "info", "capture": "metadata", "data": {"x.other.note": "ä" * 20_000}}
        lines = [
            json.dumps(event | {"id": f"01J{run:03d}{seq:020d}", "seq": run * 60 + seq}, ensure_ascii=False)
            for seq in range(60)
        ]
        ask = Ask("POST", "/events", "\n".join(lines) + "\n", content_type="application/x-ndjson")
        sent = function_url(ask)
        sent["headers"]["aep-version"] = "0.1"
        assert container.call(sent)["statusCode"] == 202
        answer = container.call(function_url(replay_of("big")))
        whole = run < 2  # 2.4 MB of text a batch
        assert answer["statusCode"] == (200 if whole else 501)
    assert json.loads(body_of(answer))["error"] == "answer-too-large"
    assert len(container.events("other")) == 0


@EACH
def test_refusals_look_as_everywhere(container: Container, via: Builder) -> None:
    answer = container.call(via(Ask("POST", "/hook", "{}", token=None)))
    assert answer["statusCode"] == 401
    assert answered(answer)["www-authenticate"].startswith("Bearer")
    assert container.call(via(Ask("POST", "/hook", "{}", content_type="text/plain")))["statusCode"] == 415
    assert container.call(via(Ask("POST", "/hook", "{")))["statusCode"] == 400
    assert container.call(via(Ask("GET", "/nothing")))["statusCode"] == 404
    assert container.call(via(Ask("GET", "/readyz")))["statusCode"] == 200


@EACH
def test_what_does_not_work_there_is_refused_plainly(container: Container, via: Builder) -> None:
    live = container.call(via(Ask("GET", "/stream")))
    assert live["statusCode"] == 501
    assert "live=0" in json.loads(body_of(live))["detail"]
    for answer in (container.call(via(Ask("GET", "/socket"))), container.call(socket_connect())):
        assert answer["statusCode"] == 501
        assert json.loads(answer["body"])["error"] == "no-socket"
    document = json.loads(body_of(container.call(via(Ask("GET", "/events")))))
    assert set(document["endpoints"]) == {"events", "stream"}


@EACH
def test_cold(variables: dict[str, str], via: Builder) -> None:
    script = (
        "import json, sys; from handlers.aws import handler; from tests.app.aws_container import Limit;"
        "print(json.dumps(handler(json.load(sys.stdin), Limit(30_000))))"
    )
    event = via(hook_ask("SessionStart", **STARTED))
    found = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(event),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **variables},
        timeout=60,
        check=True,
    )
    answer = json.loads(found.stdout)
    assert (answer["statusCode"], answered(answer)["aep-stored"]) == (200, "yes")
    assert "Traceback" not in found.stderr


def test_warm(container: Container) -> None:
    kinds = list(EVERY.values())
    assert container.hook("SessionStart", "w", **STARTED) == "yes"
    service = container.function.app.service
    for number in range(200):
        assert container.hook("Notification", "w", via=kinds[number % len(kinds)], message="m") == "yes"
        if number % 50 == 49:
            assert container.call(schedule())["ticked"] >= 0
    assert container.function.app.service is service
    sequence = [event["seq"] for event in container.events("w")]
    assert len(sequence) == 201
    assert sequence == sorted(set(sequence))


def test_connections_that_the_server_closes_between_two_invocations(
    container: Container, redis_server: AnyServer
) -> None:
    assert container.hook("SessionStart", **STARTED) == "yes"
    for _ in range(5):
        redis_server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert container.hook("Notification", message="m") == "yes"
    assert len(container.events()) == 6


def test_connections_that_are_forgotten_in_silence_during_a_long_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    try:
        with forgetful(server.url) as (url, way):
            for name, value in (environment(server) | {"AEP_REDIS_URL": url}).items():
                monkeypatch.setenv(name, value)
            container = Container()
            try:
                for pause in range(1, 4):
                    assert container.hook("Notification", message="m") == "yes"
                    way.forget()
                    container.jump = pause * 900.0
                assert len(container.events()) == 3
            finally:
                container.close()
    finally:
        server.stop()


def test_a_server_that_was_restarted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(aof=True)
    container = None
    try:
        for name, value in environment(server).items():
            monkeypatch.setenv(name, value)
        container = Container()
        for _ in range(3):
            assert container.hook("Notification", message="m") == "yes"
            server.kill()
            server.start()
        assert container.hook("Notification", message="m") == "yes"
        assert len({event["seq"] for event in container.events()}) == 4
    finally:
        if container is not None:
            container.close()
        server.stop()


def test_a_long_pause_makes_new_connections(container: Container) -> None:
    assert container.hook("SessionStart", **STARTED) == "yes"
    first = container.function.app.service
    container.jump = 50.0
    assert container.hook("Notification", message="m") == "yes"
    assert container.function.app.service is first
    for jump in (3_600.0, 30.0):  # forward, and back: the clock of a thawed machine may be set
        container.jump = jump
        assert container.hook("Notification", message="m") == "yes"
        assert container.function.app.service is not first
        first = container.function.app.service
    container.jump = 7_200.0
    assert container.call(schedule()) == {"ticked": 0}
    assert container.function.app.service is not first
    assert len(container.events()) == 4


def test_the_wall_clock_jumps_while_it_is_frozen(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = {"ms": 0}
    monkeypatch.setattr(
        "handlers.clock.SystemClock.now_ms", lambda _: time.time_ns() // 1_000_000 + moved["ms"]
    )
    for milliseconds in (0, 6 * 3_600_000, -2_000, 0):
        moved["ms"] = milliseconds
        assert container.hook("Notification", message="m") == "yes"
    sequence = [event["seq"] for event in container.events()]
    assert len(sequence) == 4
    assert sequence == sorted(set(sequence))


def test_the_schedule_ticks_what_is_due(container: Container) -> None:
    def types() -> list[str]:
        return [event["type"] for event in container.events()]

    assert container.call(schedule()) == {"ticked": 0}
    asked = {"tool_name": "Bash", "tool_call_id": "c1", "tool_input": {"command": "ls"}}
    container.hook("UserPromptSubmit", prompt="go")
    container.hook("PreToolUse", **asked)
    container.hook("PermissionRequest", **asked, turn_id=0, action="run", display="ls?")
    container.hook("Stop", stop_hook_active=False)
    assert types()[-1] == "run.finished"
    # A request whose answer the vendor never sent is given up two seconds after the run's end.
    time.sleep(2.1)
    assert container.call(schedule()) == {"ticked": 1}
    assert types()[-1] == "attention.resolved"


CALL = {"tool_name": "Bash", "tool_call_id": "c1", "tool_input": {"command": "ls"}}


@pytest.fixture
def controlled(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    monkeypatch.setenv("AEP_KIMI_CONTROL", "1")
    made = Container()
    yield made
    made.close()


def _held_ms(container: Container) -> list[float]:
    """How long each request of the session was meant to wait."""
    found = []
    for event in container.events():
        if event["type"] == "attention.requested":
            ends = event["data"]["expires_at"]
            found.append(
                (datetime.fromisoformat(ends) - datetime.fromisoformat(event["time"])).total_seconds() * 1000
            )
    return found


@pytest.mark.parametrize(
    ("via", "limit_ms", "ago_ms"),
    [(function_url, 4_300, 0), (rest, 60_000, 24_700), (http_v2, 60_000, 24_700)],
    ids=["function", "rest", "http"],
)
def test_a_hold_is_cut_to_what_the_platform_leaves(
    controlled: Container, via: Builder, limit_ms: int, ago_ms: int
) -> None:
    container = controlled
    container.hook("UserPromptSubmit", prompt="go")
    answer = container.call(via(hook_ask("PreToolUse", ago_ms=ago_ms, **CALL)), limit_ms)
    assert (answer["statusCode"], body_of(answer)) == (200, "{}")
    [milliseconds] = _held_ms(container)
    assert 0 < milliseconds <= 1_300
    assert container.events()[-1]["type"] == "attention.timeout"
    # The next one has all its time again: nothing of the last limit is left.
    assert container.function.app.service.settings.attention_timeout_ms == 50_000


@pytest.mark.parametrize(("via", "limit_ms", "ago_ms"), [(function_url, 3_900, 0), (rest, 60_000, 25_200)])
def test_nothing_is_held_where_no_time_is_left(
    controlled: Container, via: Builder, limit_ms: int, ago_ms: int
) -> None:
    controlled.hook("UserPromptSubmit", prompt="go")
    answer = controlled.call(via(hook_ask("PreToolUse", ago_ms=ago_ms, **CALL)), limit_ms)
    assert (body_of(answer), answered(answer)["aep-stored"]) == ("{}", "yes")
    assert _held_ms(controlled) == []
    assert controlled.function.app.service.settings.control


def test_a_hold_is_answered_through_a_replica_elsewhere(
    controlled: Container, variables: dict[str, str]
) -> None:
    with processes(1, {**variables, "AEP_KIMI_CONTROL": "1"}) as [replica]:
        controlled.hook("UserPromptSubmit", prompt="go")
        waiting = controlled.send(function_url(hook_ask("PreToolUse", **CALL)), 60_000)
        said: list[subprocess.CompletedProcess[str]] = []

        def answer() -> None:
            command = [sys.executable, "-m", "deploy.cli.main", "respond", "-", "use the other one"]
            told = {"PATH": "/usr/bin:/bin", "AEP_URL": replica.url, "AEP_TOKEN": TOKEN}
            while not waiting.done():
                said.append(
                    subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
                )
                if said[-1].returncode == 0:
                    return

        operator = threading.Thread(target=answer)
        operator.start()
        reply: dict[str, Any] = json.loads(body_of(waiting.result(60)))
        operator.join()
        assert reply["hookSpecificOutput"]["permissionDecision"] == "deny", said
        assert reply["hookSpecificOutput"]["permissionDecisionReason"] == "use the other one"


def test_importing_the_entry_needs_no_settings() -> None:
    script = "import handlers.aws; assert callable(handlers.aws.handler)"
    subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, check=True, timeout=60
    )
