"""What an operator should know about the server before trusting it with state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from state.connection import Client
from state.errors import Refused, UnsafeServer

OLDEST = (6, 2)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What one server says of itself; None where it would not tell (CONFIG is often forbidden)."""

    version: str
    eviction: str | None
    maxmemory: int | None
    durable: bool | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Plain sentences about what can lose state."""
        found = []
        if self.eviction is not None and self.eviction != "noeviction":
            limit = "once its memory limit is set" if not self.maxmemory else f"at {self.maxmemory} bytes"
            found.append(f"maxmemory-policy is {self.eviction}: the server throws sessions away {limit}")
        if self.durable is False:
            found.append("neither an append-only log nor snapshots are on: a restart loses every session")
        return tuple(found)


async def inspect(client: Client) -> list[ServerFacts]:
    """The facts of every primary. Raises StateError, or UnsafeServer for a server that is too old."""
    facts = []
    versions = [_version(text) for text in await client.everywhere("INFO", "server")]
    eviction = await _config(client, "maxmemory-policy", len(versions))
    memory = await _config(client, "maxmemory", len(versions))
    log = await _config(client, "appendonly", len(versions))
    save = await _config(client, "save", len(versions))
    for number, version in enumerate(versions):
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
            raise UnsafeServer(f"Redis {version} is too old: 6.2 is the oldest that works")
        limit, appends, saves = memory[number], log[number], save[number]
        facts.append(
            ServerFacts(
                version=version,
                eviction=eviction[number],
                maxmemory=int(limit) if limit is not None else None,
                durable=None if appends is None else appends == "yes" or bool(saves),
            )
        )
    return facts


async def demand_safe(client: Client) -> list[str]:
    """Warnings worth a line at start.

    Raises UnsafeServer when a memory limit with an eviction policy is in force, since then state is lost
    in normal work, without a failure anybody would see.
    """
    warnings: list[str] = []
    for facts in await inspect(client):
        if facts.maxmemory and facts.eviction not in (None, "noeviction"):
            raise UnsafeServer(facts.warnings[0] + "; set it to noeviction")
        warnings += facts.warnings
    return list(dict.fromkeys(warnings))


def _version(info: Any) -> str:
    text = info.decode() if isinstance(info, bytes) else str(info)
    match = re.search(r"(?:valkey|redis)_version:(\S+)", text)
    return match[1] if match else "0"


async def _config(client: Client, name: str, servers: int) -> list[str | None]:
    try:
        replies = await client.everywhere("CONFIG", "GET", name)
    except Refused:
        return [None] * servers
    return [reply[1].decode() if len(reply) > 1 else None for reply in replies]
