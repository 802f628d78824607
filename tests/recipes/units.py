"""A stand-in for `systemctl` where no systemd runs: starts what the unit files say, as they say it.

It knows `daemon-reload`, `enable --now`, `start`, `stop`, `restart` and `kill`. Sandboxing and restarts after
a crash are systemd's own and not imitated.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PLACES = (Path("/etc/systemd/system"), Path("/lib/systemd/system"))
STATE = Path("/run/units")
START_SECONDS = 60.0
STOP_SECONDS = 20.0


def settings(name: str) -> dict[str, list[str]]:
    """The `[Service]` part of a unit with its drop-ins, each key with all its values."""
    stem, _, instance = name.partition("@")
    file = f"{stem}@.service" if instance else f"{name}.service"
    paths = [next(place / file for place in PLACES if (place / file).exists())]
    paths += sorted((PLACES[0] / f"{name}.service.d").glob("*.conf"))
    found: dict[str, list[str]] = {}
    for path in paths:
        section = ""
        for line in path.read_text().replace("\\\n", " ").splitlines():
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line and line[0] not in "#;":
                key, _, value = line.partition("=")
                found.setdefault(key, []).append(value.replace("%i", instance))
    return found


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    """What the unit gives its process, and nothing of ours."""
    lines = [word for value in unit.get("Environment", []) for word in shlex.split(value)]
    for file in unit.get("EnvironmentFile", []):
        lines += [line for line in Path(file).read_text().splitlines() if line and line[0] not in "#;"]
    return dict(line.split("=", 1) for line in lines)


def start(name: str) -> None:
    """Start it, and with `Type=notify` wait until it says that it is ready."""
    unit = settings(name)
    account = pwd.getpwnam(unit["User"][-1]) if "User" in unit else pwd.getpwuid(0)
    group = grp.getgrnam(unit["Group"][-1]).gr_gid if "Group" in unit else account.pw_gid
    for directory in unit.get("RuntimeDirectory", []):
        path = Path("/run", directory)
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, account.pw_uid, group)
    STATE.mkdir(exist_ok=True)
    given = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        **environment(unit),
    }
    address = STATE / f"{name}.notify"
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        address.chmod(0o777)
        manager.settimeout(START_SECONDS)
        waits = unit.get("Type", ["simple"])[-1] == "notify"
        if waits:
            given["NOTIFY_SOCKET"] = str(address)
        with (STATE / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(unit["ExecStart"][-1]),
                env=given,
                cwd="/",
                user=account.pw_uid,
                group=group,
                extra_groups=[],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (STATE / f"{name}.pid").write_text(str(process.pid))
        while waits and b"READY=1" not in manager.recv(4096):
            pass


def pid_of(name: str) -> int:
    """The process of a unit, 0 for none."""
    path = STATE / f"{name}.pid"
    return int(path.read_text()) if path.exists() else 0


def runs(pid: int) -> bool:
    """Whether it is there and has not ended; nobody may have collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stop(name: str, number: int = signal.SIGTERM) -> None:
    """Send the signal and wait for the end."""
    pid = pid_of(name)
    if pid == 0 or not runs(pid):
        return
    os.kill(pid, number)
    end = time.monotonic() + STOP_SECONDS
    while runs(pid):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main(arguments: list[str]) -> None:
    """Run one command line of systemctl."""
    verb, *rest = arguments
    names = [word.removesuffix(".service") for word in rest if not word.startswith("-")]
    if verb == "kill":
        names = [name for name in names if name != "KILL"]
    for name in names:
        if verb in ("stop", "restart"):
            stop(name)
        if verb == "kill":
            stop(name, signal.SIGKILL)
        if verb in ("start", "restart") or (verb == "enable" and "--now" in rest):
            start(name)
    if verb not in ("daemon-reload", "enable", "start", "stop", "restart", "kill"):
        raise SystemExit(f"systemctl: not known here: {verb}")


if __name__ == "__main__":
    main(sys.argv[1:])
