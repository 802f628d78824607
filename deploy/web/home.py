"""What Kimi Code leaves in its home about its web servers: where they listen, and the token they want.

An instance file is a hint. It is written before the port is bound, stays behind a crash, and its server id
is not the one that the server tells of itself (kimi-code 2.1.0); so whoever uses it asks the address first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FILE_LIMIT = 64 * 1024
_MOST_FILES = 64
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `secure` where it is reached through TLS."""

    host: str
    port: int
    secure: bool = False

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def base(self) -> str:
        """The root of the REST API."""
        return f"http{'s' if self.secure else ''}://{self.place}/api/v1"

    @property
    def stream(self) -> str:
        """The WebSocket."""
        return f"ws{'s' if self.secure else ''}://{self.place}/api/v1/ws"


def locate(given: str | None, env: Mapping[str, str]) -> Path:
    """The home of Kimi Code: what was given, `KIMI_CODE_HOME`, or `~/.kimi-code`."""
    found = given or env.get("KIMI_CODE_HOME")
    return Path(found).expanduser() if found else Path.home() / ".kimi-code"


def servers(home: Path) -> list[Address]:
    """The addresses of the servers that say they run, each once. Unreadable files are skipped."""
    try:
        files = sorted((home / "server" / "instances").glob("*.json"))[-_MOST_FILES:]
    except OSError:
        return []
    found = dict.fromkeys(address for file in files if (address := _read(file)) is not None)
    return list(found)


def _read(file: Path) -> Address | None:
    try:
        with file.open("rb") as stream:
            said = json.loads(stream.read(_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    host, port, pid = said.get("host"), said.get("port"), said.get("pid")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65_536:
        return None
    if isinstance(pid, int) and not isinstance(pid, bool) and not _alive(pid):
        return None
    name = host if isinstance(host, str) else ""
    return Address(_ANYWHERE.get(name, name), port)


def _alive(pid: int) -> bool:
    if pid <= 0 or os.name != "posix":
        return pid > 0
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class TokenFile:
    """`server.token`, read again when the file has changed."""

    def __init__(self, home: Path) -> None:
        self._path = home / "server.token"
        self._seen: tuple[int, int, int] | None = None
        self._token: str | None = None

    def read(self) -> str | None:
        """The token; None where there is none that could be sent."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                with self._path.open("rb") as stream:
                    token = stream.read(4_096).decode("ascii", "replace").strip()
                usable = bool(token) and token.isprintable() and token.isascii() and " " not in token
                self._token = token if usable else None
                self._seen = seen
        except OSError:
            self._seen = self._token = None
        return self._token
