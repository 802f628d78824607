"""Which programs of Kimi Code run, and since when: those that read the hooks before the last change lack it.

Sources: kimi-code 2.1.0 reads hooks at its start and at `/reload` only, 0.28.0 once per session; `kimi web`
keeps `<home>/server/instances/<id>.json` (`pid`, `started_at` in ms).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_PROGRAM = re.compile(
    r"@moonshot-ai[/\\]kimi-code|(?:^|[/\\])\.?kimi-code[/\\](?:bin[/\\]kimi|dist[/\\]main)"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A running Kimi Code: `what` is `kimi` or `kimi web`."""

    pid: int
    what: str
    since: datetime


def programs(home: Path) -> list[Program]:
    """The running programs that use this home, as far as this system tells."""
    found = {p.pid: p for p in (_from_proc(home) if Path("/proc/self/stat").exists() else _from_ps())}
    found |= {p.pid: p for p in _servers(home)}
    return sorted(found.values(), key=lambda p: p.pid)


def _from_proc(home: Path) -> Iterator[Program]:
    # Not from the time of boot in /proc/stat, which is cut to a second: a session a moment younger than
    # its hooks would be called older.
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            env = dict(
                pair.partition("=")[::2]
                for pair in (folder / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
            )
            title = (folder / "comm").read_text().strip()
            named = any(_PROGRAM.search(word) for word in words[:2]) or title in ("kimi", "kimi-code")
            used = env.get("KIMI_CODE_HOME", "").strip() or os.path.join(env.get("HOME", ""), ".kimi-code")
            if not named or os.path.realpath(used) != os.path.realpath(home):
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            since = datetime.fromtimestamp(boot + int(fields[19]) / tick, UTC)
            yield Program(int(folder.name), "kimi", since)


def _from_ps() -> Iterator[Program]:
    if sys.platform == "win32":
        return
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["ps", "-axo", "pid=,etime=,command="], capture_output=True, text=True, timeout=10, check=False
        )
        now = datetime.now(UTC)
        for line in done.stdout.splitlines():
            pid, age, command = (*line.split(None, 2), "", "")[:3]
            if _PROGRAM.search(command) and pid.isdigit():
                yield Program(int(pid), "kimi", now - elapsed(age))


def elapsed(text: str) -> timedelta:
    """The `etime` of `ps`: `[[days-]hours:]minutes:seconds`."""
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":") if part.isdigit()]
    hours, minutes, seconds = [0, 0, 0, *parts][-3:]
    return timedelta(days=int(days) if days.isdigit() else 0, hours=hours, minutes=minutes, seconds=seconds)


def _servers(home: Path) -> Iterator[Program]:
    with suppress(OSError):
        for path in (home / "server" / "instances").glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                data = json.loads(path.read_text("utf-8"))
                pid = int(data["pid"])
                if _alive(pid):
                    yield Program(
                        pid, "kimi web", datetime.fromtimestamp(int(data["started_at"]) / 1000, UTC)
                    )


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
