"""The host guide, pasted as it is, on a copy of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.test_recipes import ROOT

NEEDED = ("unshare", "mount", "git", "curl", "caddy", "redis-server", "redis-cli", "useradd")
UNITS = ("caddy.service", "redis-server.service")
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


def missing() -> str | None:
    """Why the guide cannot be followed here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "wants root on Linux, in namespaces of its own"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    absent += [name for name in UNITS if not Path("/lib/systemd/system", name).exists()]
    if absent:
        return f"not installed: {' '.join(absent)}"
    if Path("/opt/aep-kimi").exists() or Path("/etc/aep-kimi").exists():
        return "this machine is a deployment"
    if subprocess.run(
        ["/usr/bin/python3", "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"]
    ).returncode:
        return "not installed: python3-venv, with Python 3.11 or newer"
    alone = subprocess.run([*ALONE, "unshare", "--net", "true"], capture_output=True, check=False)
    return None if alone.returncode == 0 else "namespaces are not allowed here"


@pytest.mark.slow
def test_the_host_guide_gives_two_users_a_deployment_with_tls() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
    done = subprocess.run(
        [
            *ALONE,
            sys.executable,
            str(ROOT / "tests/recipes/machine.py"),
            str(ROOT / "docs/deploy.md"),
            str(ROOT),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-12_000:]
    assert "the guide holds" in done.stdout
