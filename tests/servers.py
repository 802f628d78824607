"""Redis-compatible servers for tests: one alone, or a small cluster; started, frozen, killed, restarted.

`AEP_TEST_REDIS` names the shape that every test runs in. Unset or `embedded`: our own default's program on a
unix socket. `redis`, `valkey` or a path: that program. `cluster` or `cluster:NAME`: three nodes of it with 16
shards. `acl` or `acl:NAME`: that program, used with restricted rights. A URL: that server, which the tests
empty; the servers that they kill are then of the default program.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from state import embedded

Copy: TypeAlias = list[list[tuple[bytes, bytes, int]]]
"""Name, value and lifetime of every key, by node."""


class AnyServer(Protocol):
    """A server or a cluster: `url` is for the code that is tested, `admin_url` for what only a test does."""

    url: str
    admin_url: str
    shards: int

    def run(self, *command: Any) -> Any:
        """Run one command as the administrator, on every node; the reply of the first."""

    def held(self) -> dict[bytes, int]:
        """Every key and the milliseconds it has left, -1 for one that lives for ever."""

    def flush(self) -> None:
        """Empty it."""

    def stop(self) -> None:
        """End it and remove its data."""


class OwnServer(AnyServer, Protocol):
    """One that a test may do anything to; in a cluster it is done to every node."""

    def start(self) -> None:
        """Start it, on the data it left behind, and wait until it answers."""

    def kill(self) -> None:
        """Kill it the hard way and wait for its end."""

    def freeze(self) -> None:
        """Stop it without closing anything."""

    def thaw(self) -> None:
        """Let it go on."""

    def forget(self) -> None:
        """Remove the data of one that was killed."""

    def copy(self) -> Copy:
        """What it holds now."""

    def restore(self, copy: Copy) -> None:
        """Put back what it held, into an empty one."""


def shape() -> tuple[str, str]:
    """The shape that tests run in (`alone`, `cluster`, `acl` or a URL) and the name of the server program."""
    name = os.environ.get("AEP_TEST_REDIS") or "embedded"
    if "://" in name:
        return name, "embedded"
    kind, _, rest = name.partition(":")
    return (kind, rest or "embedded") if kind in ("cluster", "acl") else ("alone", name)


def program(name: str | None = None) -> str:
    """Path of a server program: `embedded`, `redis`, `valkey`, or a path; the shape's unless it is named."""
    name = name or shape()[1]
    if name == "embedded":
        binary = embedded.find()
        assert binary is not None, "no server program was found"
        return binary.path
    path = shutil.which({"redis": "redis-server", "valkey": "valkey-server"}.get(name, name))
    assert path is not None, f"no server program {name!r}"
    return path


def free_port(beyond: int = 0) -> int:
    """A port that is free now, and so is the one `beyond` above it."""
    while True:
        port = random.randint(15000, 45000)
        try:
            for number in {port, port + beyond}:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


class Server:
    """One server process of a test, on a unix socket or on a loopback port, in a directory of its own."""

    def __init__(
        self,
        name: str | None = None,
        *,
        port: int | None = None,
        aof: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="aep-test-"))
        self.port = port
        self.shards = int(os.environ.get("AEP_TEST_SHARDS", "1"))
        self._command = [program(name), "--dir", str(self.directory), "--daemonize", "no", "--save", ""]
        self._command += ["--logfile", str(self.directory / "log"), "--appendonly", "yes" if aof else "no"]
        if port is None:
            self.path = str(self.directory / "v.sock")
            self.url = f"unix://{self.path}"
            self._command += ["--port", "0", "--unixsocket", self.path]
        else:
            self.path = ""
            self.url = f"redis://127.0.0.1:{port}"
            self._command += ["--port", str(port), "--bind", "127.0.0.1"]
        self.admin_url = self.url
        self._command += options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        if self.path and os.path.exists(self.path):
            os.unlink(self.path)
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 20
        while True:
            try:
                self.run("PING")
                return
            except (RedisError, OSError):
                log = self.directory / "log"
                if self.process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(log.read_text() if log.exists() else "no log") from None
                time.sleep(0.02)

    def run(self, *command: Any) -> Any:
        """Run one command on a connection of its own."""
        with self._connection() as redis:
            return redis.execute_command(*command)

    def held(self) -> dict[bytes, int]:
        with self._connection() as redis:
            return held(redis)

    def copy(self) -> Copy:
        with self._connection() as redis:
            return [[(name, redis.dump(name), ttl) for name, ttl in held(redis).items()]]

    def restore(self, copy: Copy) -> None:
        with self._connection() as redis:
            for name, value, ttl in copy[0]:
                redis.restore(name, max(ttl, 0), value)

    def _connection(self) -> Redis:
        where: dict[str, Any] = (
            {"unix_socket_path": self.path} if self.path else {"host": "127.0.0.1", "port": self.port}
        )
        return Redis(**where, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=10)

    def flush(self) -> None:
        self.run("FLUSHALL")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)

    def forget(self) -> None:
        for entry in self.directory.glob("append*"):
            shutil.rmtree(entry)

    @property
    def alive(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        if self.alive:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self.process is not None and self.alive:
            self.process.send_signal(number)


def held(redis: Redis) -> dict[bytes, int]:
    """Every key of one server and the milliseconds it has left."""
    names: list[bytes] = sorted(redis.scan_iter(count=1000))
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.pttl(name)
        # -2 is one that ran out in between.
        return {name: ttl for name, ttl in zip(names, pipeline.execute(), strict=True) if ttl != -2}


# The prefixes that tests use: the default one, and those that are made anew for each deployment of a test.
PATTERNS = ("aep:*", "t[0-9]*:*")

# What docs/state.md gives a user of a shared Redis.
RIGHTS = "-@all +@read +@write +@scripting +@connection -@dangerous +time +wait +info"


def restricted(*more: str) -> list[str]:
    """The options that make the service's user; from the command line it is there after a restart, too."""
    patterns = (f"~{pattern}" for pattern in PATTERNS)
    return ["--user", "aep", "on", ">secret", *patterns, *RIGHTS.split(), *more]


class Restricted(Server):
    """A server on which the service is a user with the rights of docs/state.md and no others."""

    def __init__(
        self,
        name: str | None = None,
        *,
        port: int | None = None,
        aof: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(name, port=port, aof=aof, options=[*restricted(), *options])
        self.url = self.url.replace("://", "://aep:secret@")


def logged(path: str) -> None:
    """Wait until the server at a socket has written all that it told to its log; a busy disk may keep it."""
    until = time.monotonic() + 20
    with Redis(unix_socket_path=path, protocol=2) as redis:
        while redis.info("persistence")["aof_buffer_length"]:
            assert time.monotonic() < until, "the disk stands still"
            time.sleep(0.01)
