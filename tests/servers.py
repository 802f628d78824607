"""Redis-compatible servers for tests: one alone, or a small cluster; started, frozen, killed, restarted."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from state import embedded


class AnyServer(Protocol):
    """What the `redis_url` fixture needs of a server or a cluster."""

    url: str
    shards: int

    def flush(self) -> None: ...
    def stop(self) -> None: ...


def program(name: str = "embedded") -> str:
    """Path of a server program: `embedded`, `redis` or `valkey` from PATH, or a path."""
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
        name: str = "embedded",
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
        self._command += options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the process, on the data it left behind, and wait until it answers."""
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
        where: dict[str, Any] = (
            {"unix_socket_path": self.path} if self.path else {"host": "127.0.0.1", "port": self.port}
        )
        retry = Retry(NoBackoff(), 0)
        with Redis(**where, protocol=2, retry=retry, socket_timeout=10) as redis:
            return redis.execute_command(*command)

    def flush(self) -> None:
        """Empty it."""
        self.run("FLUSHALL")

    def freeze(self) -> None:
        """Stop the process without closing anything."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it the hard way and wait for its end."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)

    def stop(self) -> None:
        """Kill it and remove its data."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


# What docs/state.md gives a user of a shared Redis, for the prefixes that tests use.
RIGHTS = "-@all +@read +@write +@scripting +@connection -@dangerous +time +wait +info"


class Restricted(Server):
    """A server on which the service is a user with the rights of docs/state.md and no others."""

    def __init__(self, name: str = "embedded") -> None:
        super().__init__(name)
        self.run("ACL", "SETUSER", "aep", "on", ">secret", "~aep:*", "~t[0-9]*:*", *RIGHTS.split())
        self.url = self.url.replace("unix://", "unix://aep:secret@")


class ClusterServers:
    """Three primaries that share the slots evenly."""

    def __init__(self, name: str = "embedded", nodes: int = 3, shards: int = 16) -> None:
        self.shards = shards
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        self.nodes = [Server(name, port=free_port(10000), options=options) for _ in range(nodes)]
        for number, node in enumerate(self.nodes):
            first, last = 16384 * number // nodes, 16384 * (number + 1) // nodes
            node.run("CLUSTER", "ADDSLOTS", *range(first, last))
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.run("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        until = time.monotonic() + 20
        while not all(self._whole(node) for node in self.nodes):
            assert time.monotonic() < until, "the cluster did not come together"
            time.sleep(0.05)
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def flush(self) -> None:
        """Empty every node."""
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        """Kill the nodes and remove their data."""
        for node in self.nodes:
            node.stop()

    def _whole(self, node: Server) -> bool:
        if not re.search(r"cluster_state\W+ok", str(node.run("CLUSTER", "INFO"))):
            return False
        return len(node.run("CLUSTER", "SLOTS")) == len(self.nodes)


class Elsewhere:
    """A server that somebody else runs, by its URL; it is emptied before each test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shards = int(os.environ.get("AEP_TEST_SHARDS", "1"))

    def flush(self) -> None:
        """Empty it."""
        with Redis.from_url(self.url) as redis:
            redis.flushall()

    def stop(self) -> None:
        """It is not ours to stop."""


def from_environment() -> AnyServer:
    """The server that `AEP_TEST_REDIS` names.

    Unset or `embedded`: our own default's program on a unix socket. `redis`, `valkey` or a path: that
    program. `cluster` or `cluster:NAME`: three nodes of it with 16 shards. `acl` or `acl:NAME`: that program,
    used with restricted rights. A URL: that server, which the tests empty.
    """
    name = os.environ.get("AEP_TEST_REDIS") or "embedded"
    if "://" in name:
        return Elsewhere(name)
    if name.partition(":")[0] == "cluster":
        return ClusterServers(name.partition(":")[2] or "embedded")
    if name.partition(":")[0] == "acl":
        return Restricted(name.partition(":")[2] or "embedded")
    return Server(name)
