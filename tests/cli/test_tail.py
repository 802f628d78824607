"""`aep-kimi tail`: what a line says, and that it goes on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from deploy.cli import tail
from deploy.cli.client import Positions, Service, ServiceError
from tests.app.processes import ROOT, Process, processes
from tests.app.replica import fresh_prefix
from tests.app.test_serve import post
from tests.servers import AnyServer, free_port

EVENT: dict[str, Any] = {
    "time": "2026-11-30T10:11:12.345Z",
    "type": "tool.failed",
    "severity": "warning",
    "session": "session_0123456789abcdef",
    "run": "run_1",
    "subject": "Bash",
    "data": {"tool": {"name": "Bash"}, "args_digest": "x" * 32, "count": 3, "list": [1, 2]},
}


def test_a_line_tells_what_happened() -> None:
    line = tail.line(EVENT, colour=False)
    assert ":12.345  warning " in line
    assert "…56789abcdef" in line
    assert "tool.failed  Bash  tool.name=Bash count=3 list=[2]" in line
    assert "digest" not in line
    assert tail.line(EVENT, colour=True).startswith("\x1b[33m")


def test_a_line_cannot_steer_the_terminal() -> None:
    hostile = EVENT | {
        "subject": "a\x1b[2Jb\nc",
        "session": "\x07",
        "type": "x\r.y",
        "data": {"\x1b": "\u009b"},
    }
    line = tail.line(hostile, colour=False)
    assert line.isprintable()


def test_a_line_survives_an_odd_event() -> None:
    assert tail.line({}, colour=False)
    assert tail.line({"time": "yesterday", "data": [1], "severity": 3, "subject": None}, colour=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("all", "all"),
        ("s1", [{"session": "s1", "epoch": 0, "seq": 0}]),
        ("s1:7", [{"session": "s1", "epoch": 0, "seq": 7}]),
        ("s1:2:7", [{"session": "s1", "epoch": 2, "seq": 7}]),
        ("a:b:7", [{"session": "a:b", "epoch": 0, "seq": 7}]),
    ],
)
def test_where_to_start(text: str | None, expected: Any) -> None:
    start = tail.parse_start(text)
    assert (json.loads(start) if start not in (None, "all") else start) == expected


def test_filters() -> None:
    assert tail.build_filter(None, None, None) == {}
    assert tail.build_filter(["run.*"], ["s"], "notice") == {
        "type": ["run.*"],
        "session": ["s"],
        "severity": {"gte": "notice"},
    }


def test_positions_fit_into_a_url() -> None:
    positions = Positions()
    for number in range(3_000):
        positions.note({"session": f"session-{number}", "seq": number})
    positions.note({"session": "session-2999", "seq": 1})
    positions.note({"type": "agent.heartbeat"})
    chosen = json.loads(positions.parameter() or "")
    assert chosen[0] == {"session": "session-2999", "epoch": 0, "seq": 2_999}
    assert 20 < len(chosen) < 200
    assert Positions().parameter() is None


def test_a_wrong_address_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServiceError, match="AEP_URL"):
        Service("ftp://x")
    assert command("tail", "--once", "--url", f"http://127.0.0.1:{free_port()}").returncode == 1


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_once_and_json(redis_server: AnyServer) -> None:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_TOKEN": "correct-horse",
    }
    with processes(1, environment) as (process,):
        refused = command("tail", "--once", "--url", process.url)
        assert refused.returncode == 1
        assert refused.stderr.startswith("aep-kimi tail: the service refused: ")
        result = command("tail", "--once", "--json", "--url", process.url, AEP_TOKEN="correct-horse")
        assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.slow
def test_it_goes_on_after_the_service_was_gone(redis_server: AnyServer) -> None:
    port = free_port()
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_HOOK_TIMEOUT_MS": "9000",
    }
    first = Process(environment, port=port)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli.main", "tail", "--json", "--from", "all", "--url", first.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines: list[str] = []
    arrived = threading.Semaphore(0)

    def read() -> None:
        assert watcher.stdout is not None
        for line in watcher.stdout:
            lines.append(line)
            arrived.release()

    reader = threading.Thread(target=read)
    reader.start()
    second = None
    try:
        assert post(first.url, {"hook_event_name": "UserPromptSubmit", "session_id": "s1"})[1] == "yes"
        assert arrived.acquire(timeout=20)
        first.kill()
        second = Process(environment, port=port)
        # Before the watcher is back: only the replay can bring it.
        assert post(second.url, {"hook_event_name": "Stop", "session_id": "s1"})[1] == "yes"
        assert arrived.acquire(timeout=30)
        assert post(second.url, {"hook_event_name": "UserPromptSubmit", "session_id": "s1"})[1] == "yes"
        assert arrived.acquire(timeout=20)
    finally:
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(20) == 130
        reader.join(10)
        assert watcher.stdout is not None
        watcher.stdout.close()
        for process in (first, second):
            if process is not None and process.process.poll() is None:
                process.kill()
    assert [json.loads(line)["type"] for line in lines] == ["run.started", "run.finished", "run.started"]
