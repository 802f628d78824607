"""The private server: found, shared, stopped by the last to leave, and recovered after any death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from state import embedded
from state.connection import Limits, connect
from state.embedded import Embedded
from state.errors import EmbeddedFailed
from state.feed import FeedEntry, FeedReader
from state.keys import Keys, SessionKey
from state.sessions import Bounds, Sessions
from tests.servers import logged
from tests.state.toy import Engine, Fold

pytestmark = pytest.mark.skipif(embedded.find() is None, reason="no server program for this system")

KEY = SessionKey("host", "session-1")


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "data"
    yield path
    pid = server_pid(path)
    if pid is not None and lives(pid):
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGKILL)
        reap(pid)


def server_pid(data_dir: Path) -> int | None:
    about = data_dir / "server.json"
    return json.loads(about.read_text())["pid"] if about.exists() else None


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def reap(pid: int) -> None:
    child = embedded._children.pop(pid, None)
    if child is not None:
        child.wait(10)
    until = time.monotonic() + 10
    while lives(pid) and time.monotonic() < until:
        time.sleep(0.01)


async def write(server: Embedded, count: int) -> int:
    """Append events, and wait until the log has them; how many the session has then."""
    client = connect(server.url, Limits(write=10, read=10, connect=10))
    sessions = Sessions(client, Keys(), Bounds())
    for number in range(count):
        await Engine(sessions).apply(KEY, [b"%d" % number], time.time_ns() // 1_000_000)
    fold = Fold.decode((await sessions.load(KEY)).state)
    await client.close()
    if server.durable:
        await asyncio.to_thread(logged, server.url.removeprefix("unix://"))
    return fold.count


async def test_data_outlives_the_server(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    assert server.durable
    assert not server.shared
    assert await write(server, 5) == 5
    assert server.stop()
    server = embedded.start(data_dir)
    assert not server.shared
    assert await write(server, 5) == 10
    assert server.stop()


async def test_a_server_that_died_under_us_is_revived_once(data_dir: Path) -> None:
    one = embedded.start(data_dir)
    two = embedded.start(data_dir)
    assert await write(one, 2) == 2
    assert not one.revive()
    pid = server_pid(data_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    assert await asyncio.to_thread(two.revive)
    assert not one.revive()
    assert await write(one, 1) == 3
    assert not one.stop()
    assert two.stop()
    assert not two.revive()


async def test_one_server_serves_all_and_the_last_to_leave_stops_it(data_dir: Path) -> None:
    one = embedded.start(data_dir)
    two = embedded.start(data_dir)
    assert two.shared
    assert two.url == one.url
    assert two.kind == one.kind
    assert not one.stop()
    assert await write(two, 1) == 1
    assert two.stop()
    pid = server_pid(data_dir)
    assert pid is not None
    assert not lives(pid)


def test_many_who_start_at_once_start_one(data_dir: Path) -> None:
    found: list[Embedded] = []
    threads = [threading.Thread(target=lambda: found.append(embedded.start(data_dir))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({server.url for server in found}) == 1
    assert [server.shared for server in found].count(False) == 1
    assert [server.stop() for server in found] == [False] * 7 + [True]


SERVICE = """
import asyncio, sys, time
from pathlib import Path
from state import embedded
from tests.state.test_embedded import write
server = embedded.start(Path(sys.argv[1]))
print(asyncio.run(write(server, 5)), flush=True)
time.sleep(60)
"""


def killed_service(data_dir: Path) -> None:
    """A service that started the server, wrote five events and was killed the hard way."""
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(data_dir)], stdout=subprocess.PIPE)
    assert service.stdout is not None
    assert service.stdout.readline() == b"5\n"
    service.kill()
    service.wait(10)
    service.stdout.close()


async def test_a_killed_service_leaves_a_server_that_the_next_one_finds(data_dir: Path) -> None:
    killed_service(data_dir)
    server = embedded.start(data_dir)
    assert server.shared
    assert await write(server, 1) == 6
    assert server.stop()


async def test_everything_killed_is_recovered(data_dir: Path) -> None:
    killed_service(data_dir)
    pid = server_pid(data_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    server = embedded.start(data_dir)
    assert not server.shared
    assert await write(server, 1) == 6
    assert server.stop()


async def test_a_server_whose_socket_was_cleaned_away_is_replaced(data_dir: Path) -> None:
    killed_service(data_dir)
    os.unlink(embedded._socket(data_dir))
    server = embedded.start(data_dir)
    assert not server.shared
    assert await write(server, 1) == 6
    assert server.stop()


async def test_a_server_that_hangs_is_replaced(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_STOP_LIMIT", 1.0)
    killed_service(data_dir)
    pid = server_pid(data_dir)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    server = embedded.start(data_dir)
    monkeypatch.undo()
    assert not server.shared
    assert await write(server, 1) == 6
    assert server.stop()


async def test_a_torn_end_of_the_log_is_no_obstacle(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    assert await write(server, 5) == 5
    assert server.stop()
    (log,) = (data_dir / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes()[:-20])
    server = embedded.start(data_dir)
    assert await write(server, 0) == 4
    assert server.stop()


async def test_a_path_too_long_for_a_socket_and_odd_characters_work(data_dir: Path) -> None:
    deep = data_dir / "a%20b c?#é" / ("d" * 150)
    server = embedded.start(deep)
    try:
        assert await write(server, 1) == 1
        path = Path(embedded._socket(deep))
        assert len(str(path)) <= 100
        assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        assert server.stop()


def test_the_data_is_for_nobody_else(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o755)
    server = embedded.start(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert Path(embedded._socket(data_dir)).stat().st_mode & 0o077 == 0
    assert server.stop()


def test_a_place_that_is_no_directory_is_named(data_dir: Path) -> None:
    data_dir.write_text("a file")
    with pytest.raises(EmbeddedFailed, match="data"):
        embedded.start(data_dir)
    data_dir.unlink()


def test_a_program_that_ends_at_once_is_named_with_its_log(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "find", lambda: embedded.Binary("/bin/false", "valkey", (9, 1)))
    with pytest.raises(EmbeddedFailed, match="status 1"):
        embedded.start(data_dir)
    monkeypatch.undo()
    server = embedded.start(data_dir)
    assert server.stop()


async def test_without_a_program_nothing_is_kept_and_it_says_so(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "find", lambda: None)
    with caplog.at_level(logging.WARNING):
        server = embedded.start(data_dir)
    assert not server.durable
    assert "NOT durable" in caplog.text
    client = connect(server.url)
    heard: list[FeedEntry] = []
    reader = FeedReader(client, Keys(), lambda _, entries: heard.extend(entries), block_ms=200)
    reader.start()
    await reader.ready()
    assert await write(server, 3) == 3
    async with asyncio.timeout(20):
        while len(heard) < 3:
            await asyncio.sleep(0.01)
    await reader.stop()
    await client.close()
    assert server.stop()


async def test_the_imitation_loses_no_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library behind it does on Python 3.11.2, when its reply comes at the same moment."""
    client = connect("fake://cancelled")
    monkeypatch.setattr(client._redis, "execute_command", deaf)  # type: ignore[attr-defined]
    link = await client.blocking("", 2)
    for work in (client.call("", "PING"), wrapped(link.send("XREAD", "BLOCK", 1000))):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await link.close()
    monkeypatch.undo()
    await client.close()


async def deaf(*command: object) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0.05)


async def wrapped(future: asyncio.Future[object]) -> object:
    return await future


def test_programs_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0:0 malloc=x bits=64 build=1'\n")
    old.chmod(0o755)
    assert embedded.inspect(str(old)) == embedded.Binary(str(old), "redis", (6, 0, 16))
    monkeypatch.setattr(embedded, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.find() is None
    new = tmp_path / "valkey-server"
    new.write_text("#!/bin/sh\necho 'Valkey server v=8.1.8 sha=0:0 malloc=x bits=64 build=1'\n")
    new.chmod(0o755)
    assert embedded.find() == embedded.Binary(str(new), "valkey", (8, 1, 8))
    assert embedded.inspect("/nowhere/redis-server") is None


def test_the_default_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert embedded.default_data_dir() == tmp_path / "aep-kimi"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded.default_data_dir() == tmp_path / ".local" / "state" / "aep-kimi"


def test_the_server_listens_on_nothing_but_its_socket(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(embedded._socket(data_dir))
        link.sendall(b"CONFIG GET port\r\n")
        assert link.recv(100).endswith(b"$1\r\n0\r\n")
    assert server.stop()
