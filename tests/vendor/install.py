"""Node and Kimi Code from npm, installed once into a cache folder.

`AEP_VENDOR_CACHE` names the folder (default `.ci/cache/vendor` of the checkout, ignored by git). Offline,
what the cache holds is used. `AEP_VENDOR_REQUIRED=1` turns the skips of these suites into failures.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "@moonshot-ai/kimi-code"
NODE_MIN = (22, 19)
ROOT = Path(__file__).resolve().parents[2]


class Unavailable(Exception):
    """The vendor's binary cannot be had here (no npm, or offline with an empty cache)."""


@dataclass(frozen=True, slots=True)
class Install:
    """One installed version. `kimi` is a script that runs it with the right Node, like a user's `kimi`."""

    version: str
    node: Path
    main: Path
    kimi: Path

    @property
    def series(self) -> tuple[int, ...]:
        return semver(self.version)

    @property
    def v2(self) -> bool:
        """agent-core-v2 runs every surface (kimi-code 0.33.0 and newer)."""
        return self.series >= (0, 33)


def semver(version: str) -> tuple[int, ...]:
    """`2.1.0` → (2, 1, 0); a pre-release sorts as its numbers."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("-")[0])[:3])


def cache_dir() -> Path:
    return Path(os.environ.get("AEP_VENDOR_CACHE") or ROOT / ".ci" / "cache" / "vendor")


@contextmanager
def _locked() -> Iterator[Path]:
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _npm(*arguments: str, timeout_s: float = 240) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    try:
        done = subprocess.run(
            [npm, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"npm {arguments[0]} failed (offline?)") from error
    return done.stdout


def _install(cache: Path, name: str, package: str, *, scripts: bool) -> Path:
    """Install into `cache/name`, whole or not at all."""
    target = cache / name
    if (target / ".complete").exists():
        return target
    staging = cache / f"{name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    staging.mkdir()
    flags = ["--no-audit", "--no-fund", "--loglevel=error", "--omit=optional" if not scripts else "--no-save"]
    if not scripts:
        flags.append("--ignore-scripts")
    _npm("install", "--prefix", str(staging), *flags, package)
    (staging / ".complete").touch()
    staging.rename(target)
    return target


def _node_version(node: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([node, "--version"], check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ()
    return semver(done.stdout.strip().lstrip("v"))


def node() -> Path:
    """A Node that Kimi Code accepts: the one on PATH if new enough, else npm's package `node`."""
    found = shutil.which("node")
    if found and _node_version(found) >= NODE_MIN:
        return Path(found)
    with _locked() as cache:
        binary = (
            _install(cache, "node-22", "node@22", scripts=True) / "node_modules" / "node" / "bin" / "node"
        )
    if _node_version(str(binary)) < NODE_MIN:
        raise Unavailable("the npm package node@22 has no working node for this machine")
    return binary


def newest(major: int) -> str:
    """The newest released version of a major series; offline, the newest one in the cache."""
    cached = [
        path.name.removeprefix("kimi-")
        for path in cache_dir().glob(f"kimi-{major}.*")
        if (path / ".complete").exists()
    ]
    try:
        listed = json.loads(_npm("view", f"{PACKAGE}@{major}", "version", "--json", timeout_s=60))
        versions = [listed] if isinstance(listed, str) else list(listed)
    except Unavailable:
        if not cached:
            raise
        versions = cached
    return max((v for v in versions if "-" not in v), key=semver)


def kimi(version: str) -> Install:
    """Install one version of Kimi Code, or find it in the cache."""
    runtime = node()
    with _locked() as cache:
        folder = _install(cache, f"kimi-{version}", f"{PACKAGE}@{version}", scripts=False)
        main = folder / "node_modules" / PACKAGE / "dist" / "main.mjs"
        script = folder / "bin" / "kimi"
        text = f"#!/bin/sh\nexec '{runtime}' '{main}' \"$@\"\n"
        if not script.exists() or script.read_text() != text:
            script.parent.mkdir(exist_ok=True)
            script.write_text(text)
            script.chmod(0o755)
    return Install(version, runtime, main, script)
