"""The servers of a run: a cluster, one of somebody else, and the choice that `AEP_TEST_REDIS` makes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

from redis import Redis

from tests.servers import AnyServer, Copy, Restricted, Server, free_port, held, shape


class ClusterServers:
    """Three primaries that share the slots evenly."""

    def __init__(
        self,
        name: str | None = None,
        nodes: int = 3,
        shards: int = 16,
        *,
        aof: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.shards = shards
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *options]
        self.nodes = [Server(name, port=free_port(10000), aof=aof, options=options) for _ in range(nodes)]
        for number, node in enumerate(self.nodes):
            first, last = 16384 * number // nodes, 16384 * (number + 1) // nodes
            node.run("CLUSTER", "ADDSLOTS", *range(first, last))
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.run("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        self._come_together()
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        self.admin_url = self.url

    def run(self, *command: Any) -> Any:
        first, *_ = [node.run(*command) for node in self.nodes]
        return first

    def held(self) -> dict[bytes, int]:
        return {name: ttl for node in self.nodes for name, ttl in node.held().items()}

    def copy(self) -> Copy:
        return [node.copy()[0] for node in self.nodes]

    def restore(self, copy: Copy) -> None:
        for node, part in zip(self.nodes, copy, strict=True):
            node.restore([part])

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self._come_together()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def freeze(self) -> None:
        for node in self.nodes:
            node.freeze()

    def thaw(self) -> None:
        for node in self.nodes:
            node.thaw()

    def forget(self) -> None:
        for node in self.nodes:
            node.forget()

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def alive(self) -> bool:
        """Whether its processes are there, frozen or not."""
        return all(node.alive for node in self.nodes)

    def _come_together(self) -> None:
        until = time.monotonic() + 20
        while not all(self._whole(node) for node in self.nodes):
            assert time.monotonic() < until, "the cluster did not come together"
            time.sleep(0.05)

    def _whole(self, node: Server) -> bool:
        if not re.search(r"cluster_state\W+ok", str(node.run("CLUSTER", "INFO"))):
            return False
        return len(node.run("CLUSTER", "SLOTS")) == len(self.nodes)


class Elsewhere:
    """A server that somebody else runs, by its URL; it is emptied before each test."""

    def __init__(self, url: str) -> None:
        self.url = self.admin_url = url
        self.shards = int(os.environ.get("AEP_TEST_SHARDS", "1"))

    def run(self, *command: Any) -> Any:
        with Redis.from_url(self.url, protocol=2) as redis:
            return redis.execute_command(*command)

    def held(self) -> dict[bytes, int]:
        with Redis.from_url(self.url, protocol=2) as redis:
            return held(redis)

    def flush(self) -> None:
        self.run("FLUSHALL")

    def stop(self) -> None:
        """It is not ours to stop."""


def own() -> Server | ClusterServers:
    """A server in the shape of this run, with an append-only log."""
    kind, name = shape()
    make = {"cluster": ClusterServers, "acl": Restricted}.get(kind, Server)
    # Written at once, whatever the disk does: all that a killed server told is in its log.
    return make(name, aof=True, options=["--appendfsync", "no"])


def from_environment() -> AnyServer:
    """The server of this run: in the shape that `AEP_TEST_REDIS` names, without a log."""
    kind, name = shape()
    if kind == "cluster":
        return ClusterServers(name)
    if kind == "acl":
        return Restricted(name)
    return Elsewhere(kind) if "://" in kind else Server(name)
