"""`aep-kimi serve` as users run it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from state import embedded
from tests.app.duplex import duplex
from tests.app.processes import ROOT, Process
from tests.app.replica import fresh_prefix
from tests.servers import AnyServer, free_port, logged


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", "serve", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def environment_of(server: AnyServer) -> dict[str, str]:
    return {
        "AEP_REDIS_URL": server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(server.shards),
        "AEP_HOOK_TIMEOUT_MS": "9000",
    }


def post(url: str, payload: dict[str, object]) -> tuple[bytes, str]:
    request = urllib.request.Request(
        f"{url}/hook", json.dumps(payload).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read(), response.headers["aep-stored"]


def held(url: str) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"{url}/stream?from=all&live=0", timeout=30) as response:
        text = response.read().decode()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose server, if one is left, is ended with the test."""
    directory = tmp_path / "d"
    yield directory
    for about in directory.glob("server.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(about.read_text())["pid"], signal.SIGKILL)


def test_killed_and_started_again_nothing_is_lost(private: Path) -> None:
    """The embedded server: kill -9 everything, start again, the replay is there and positions rise."""
    environment = {"AEP_DATA_DIR": str(private), "HOME": str(private), "AEP_HOOK_TIMEOUT_MS": "9000"}
    first = Process(environment)
    try:
        assert any("AEP_REDIS_URL is not set" in line and str(private) in line for line in first.lines)
        assert post(first.url, {"hook_event_name": "SessionStart", "session_id": "s1"}) == (b"{}", "yes")
        before = held(first.url)
        logged(embedded._socket(private))
    finally:
        first.kill()
    os.kill(json.loads((private / "server.json").read_text())["pid"], signal.SIGKILL)
    second = Process(environment)
    try:
        assert held(second.url) == before
        assert post(second.url, {"hook_event_name": "Stop", "session_id": "s1"})[1] == "yes"
        after = held(second.url)
        assert len(after) == 2
        assert after[1]["seq"] > before[0]["seq"]  # type: ignore[operator]
    finally:
        assert second.terminate() == 0
    assert second.lines[-1] == "aep-kimi: stopped"


def test_a_private_server_that_dies_is_started_again(private: Path) -> None:
    environment = {"AEP_DATA_DIR": str(private), "HOME": str(private), "AEP_HOOK_TIMEOUT_MS": "9000"}
    service = Process(environment)
    try:
        assert post(service.url, {"hook_event_name": "SessionStart", "session_id": "s1"})[1] == "yes"
        logged(embedded._socket(private))
        os.kill(json.loads((private / "server.json").read_text())["pid"], signal.SIGKILL)
        until = time.monotonic() + 30
        while post(service.url, {"hook_event_name": "Stop", "session_id": "s1"})[1] != "yes":
            assert time.monotonic() < until, service.lines
            time.sleep(0.2)
        assert held(service.url)[0]["type"] == "session.started"
        assert any("runs again" in line for line in service.lines)
    finally:
        assert service.terminate() == 0


def test_it_stops_while_consumers_are_there(redis_server: AnyServer) -> None:
    process = Process(environment_of(redis_server))
    consumers = [urllib.request.urlopen(f"{process.url}/stream", timeout=30) for _ in range(5)]
    for consumer in consumers:
        assert consumer.readline() == b": connected\n"
    started = time.monotonic()
    assert process.terminate() == 0
    assert time.monotonic() - started < 10
    for consumer in consumers:
        assert b": shutting-down\n" in consumer.read()
        consumer.close()


async def test_a_duplex_consumer_is_told_where_it_stands(redis_server: AnyServer) -> None:
    process = await asyncio.to_thread(Process, environment_of(redis_server))
    async with duplex(process.url) as consumer:
        await consumer.hello()
        await consumer.subscribe("s")
        await asyncio.to_thread(post, process.url, {"hook_event_name": "Stop", "session_id": "s1"})
        events = await consumer.events(1)
        assert await asyncio.to_thread(process.terminate) == 0
        frame = await consumer.until(lambda frame: frame["type"] == "closing")
        assert frame["delivered"] == [{"sub": "s", "session": "s1", "epoch": 0, "seq": events[0]["seq"]}]
        with pytest.raises(ConnectionClosed):
            await consumer.connection.recv()
        assert consumer.connection.close_code == 1001


async def test_a_refused_handshake_is_one_line_and_no_error(redis_server: AnyServer) -> None:
    process = await asyncio.to_thread(
        Process, environment_of(redis_server) | {"AEP_TOKEN": "the-right-token"}
    )
    try:
        with pytest.raises(InvalidStatus, match="401"):
            async with duplex(process.url):
                pass
    finally:
        assert await asyncio.to_thread(process.terminate) == 0
    told = [line for line in process.lines if "aep-kimi:" not in line and "Redis:" not in line]
    assert len(told) == 1
    assert "refused: 401 unauthorized websocket /socket" in told[0]


def test_a_redis_that_is_away_is_said() -> None:
    process = Process({"AEP_REDIS_URL": f"redis://127.0.0.1:{free_port()}"})
    assert process.terminate() == 0
    assert any("Redis does not answer yet" in line for line in process.lines)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_manager_is_told_when_it_is_ready(
    redis_server: AnyServer, tmp_path: Path, abstract: bool
) -> None:
    name = f"@aep-kimi-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(30)
        process = Process({**environment_of(redis_server), "NOTIFY_SOCKET": name})
        try:
            assert manager.recv(100) == b"READY=1"
            assert post(process.url, {"hook_event_name": "SessionStart", "session_id": "s1"})[1] == "yes"
        finally:
            assert process.terminate() == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_a_wrong_setting_is_named() -> None:
    result = serve(AEP_CAPTURE="everything")
    assert result.returncode == 2
    assert result.stdout.startswith("aep-kimi: AEP_CAPTURE: ")
    assert "Traceback" not in result.stderr
    assert serve("--port", "99999").returncode == 2


def test_a_taken_port_is_a_sentence(redis_server: AnyServer) -> None:
    process = Process(environment_of(redis_server))
    try:
        port = process.url.rpartition(":")[2]
        result = serve("--port", port, AEP_REDIS_URL=redis_server.url)
        assert result.returncode == 1
        assert "cannot listen on 127.0.0.1 port" in result.stdout
    finally:
        process.terminate()


@pytest.mark.parametrize(
    "arguments", [("--help",), ("serve", "--help"), ("tail", "--help"), ("timeline", "--help")]
)
def test_help_reads_like_a_manual(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0
    assert "usage: aep-kimi" in result.stdout
