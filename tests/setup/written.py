"""A config file that is written, by a command of its own or in this process, and what is there then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.setup import cli, files
from tests.setup.shapes import REAL

ROOT = Path(__file__).resolve().parents[2]


def aep_setup(
    *arguments: str, home: Path, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(*arguments, home=home),
        cwd=ROOT,
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def argv(*arguments: str, home: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "deploy.setup.cli",
        *arguments[:1],
        "kimi-code",
        *arguments[1:],
        "--home",
        str(home),
    ]


def write(home: Path, *arguments: str) -> int:
    return cli.main(["write", "kimi-code", "--home", str(home), *arguments], {"PATH": "/nowhere"})


def left(home: Path) -> set[str]:
    """What is in the home beside the config and its backups."""
    return {p.name for p in home.iterdir() if p.name != "config.toml" and files.BACKUP not in p.name}


def backups(home: Path) -> list[Path]:
    return sorted(p for p in home.iterdir() if files.BACKUP in p.name)


def is_old_or_new(data: bytes) -> bool:
    new = (
        data.startswith(REAL)
        and data.endswith(b"# <<< aep-kimi hooks <<<\n")
        and data.count(b"[[hooks]]") == 16
    )
    return data == REAL or new
