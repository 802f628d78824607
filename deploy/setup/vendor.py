"""Which Kimi Code is installed, whether it is really the vendor's, and which hook events it accepts.

Sources: npm package `@moonshot-ai/kimi-code` 0.28.0 and 2.1.0 (the unscoped `kimi-code` is somebody else's,
and the older Python program `kimi-cli` calls itself `kimi` too); kimi-code 0.32.0 changelog (four more
events, new engine only), 0.33.0 changelog (new engine by default, `KIMI_CODE_LEGACY_FLAG`); 0.43.1 has no
legacy engine.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.setup.blocks import EVENTS_16, EVENTS_20
from deploy.setup.errors import SetupError

PACKAGE = "@moonshot-ai/kimi-code"
LEGACY_FLAG = "KIMI_CODE_LEGACY_FLAG"
EXPERIMENTAL_FLAG = "KIMI_CODE_EXPERIMENTAL_FLAG"

Origin = Literal["vendor", "foreign", "unknown"]
Version = tuple[int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+][0-9A-Za-z.+-]+)?")
_NEW_EVENTS = (0, 32, 0)
_NEW_ENGINE = (0, 33, 0)
_NO_LEGACY = (0, 43, 1)
_NAMED = re.compile(rb"(@moonshot-ai[/\\]+)?\bkimi-code\b|\bkimi[_-]cli\b")


@dataclass(frozen=True, slots=True)
class Vendor:
    """The `kimi` that was found; `version` is empty where it is not known, `package` what it belongs to."""

    path: str = ""
    origin: Origin = "unknown"
    package: str = ""
    version: str = ""
    why: str = ""


def parse_version(text: str) -> Version | None:
    """`2.1.0` as numbers, None for anything else."""
    found = _VERSION.fullmatch(text.strip())
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def engine(version: str, env: Mapping[str, str]) -> str:
    """The engine of the command line, `agent-core` or `agent-core-v2`; empty if the version is unknown."""
    number = parse_version(version)
    if number is None:
        return ""
    if number < _NEW_ENGINE:
        return "agent-core-v2" if truthy(env.get(EXPERIMENTAL_FLAG)) else "agent-core"
    legacy = truthy(env.get(LEGACY_FLAG)) and number < _NO_LEGACY
    return "agent-core" if legacy else "agent-core-v2"


def events(version: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The events to register: all that this version and engine accept, those of every version if unknown."""
    number = parse_version(version)
    new = number is not None and number >= _NEW_EVENTS and engine(version, env) == "agent-core-v2"
    return EVENTS_20 if new else EVENTS_16


def truthy(value: str | None) -> bool:
    """As Kimi Code reads its flags (`1`, `true`, `yes`, `on`)."""
    return (value or "").strip().lower() in ("1", "true", "yes", "on")


def find(name: str | None, env: Mapping[str, str], *, timeout_s: float = 30) -> Vendor:
    """The `kimi` at a path, or the first on PATH; asks it for its version only if it is the vendor's."""
    path = shutil.which(name or "kimi", path=env.get("PATH"))
    if path is None:
        if name:
            raise SetupError(f"no program `{name}` can be run; give --kimi the path of Kimi Code's `kimi`")
        return Vendor(why="no `kimi` is on PATH")
    path = os.path.abspath(path)
    origin, package, packaged = identify(path)
    if origin != "vendor":
        return Vendor(path, origin, package)
    said = ask(path, env, timeout_s)
    version = said if parse_version(said) else packaged
    why = "" if version else "it does not tell its version"
    return Vendor(path, origin, package, version, why)


def others(found: Vendor, env: Mapping[str, str]) -> list[str]:
    """Further `kimi` programs on PATH, behind the one that runs."""
    paths = []
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which("kimi", path=folder) if folder else None
        if path and os.path.realpath(path) != os.path.realpath(found.path) and path not in paths:
            paths.append(path)
    return paths


def ask(path: str, env: Mapping[str, str], timeout_s: float = 30) -> str:
    """The last line that `kimi --version` prints, empty if it fails."""
    try:
        done = subprocess.run(
            [path, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.split("\n") if done.returncode == 0 else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def identify(path: str) -> tuple[Origin, str, str]:
    """`(origin, package, version of the package)` of a program.

    A link leads into its npm package; a start script or a single-file program is searched for the name of its
    package.
    """
    real = os.path.realpath(path)
    name, version = _package(Path(real))
    if not name:
        for target in _targets(real):
            name, version = _package(target)
            if name:
                break
    if not name:
        name = _named_inside(real)
    if name == PACKAGE:
        return "vendor", name, version
    return ("foreign", name, "") if name else ("unknown", "", "")


def _package(program: Path) -> tuple[str, str]:
    """Name and version of the npm package that a file belongs to, empty if to none that bears such a name."""
    for folder in program.parents:
        try:
            data = json.loads((folder / "package.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        name = data.get("name") if isinstance(data, dict) else None
        if isinstance(name, str) and "kimi" in name:
            return name, str(data.get("version") or "")
        if "node_modules" not in program.parts:
            break
    return "", ""


def _targets(path: str) -> list[Path]:
    """The JavaScript files that a start script names."""
    try:
        with open(path, "rb") as file:
            head = file.read(16384)
    except OSError:
        return []
    if not head.startswith(b"#!") and not head.lower().startswith(b"@echo"):
        return []
    text = head.decode("utf-8", "replace")
    found = re.findall(r"[^\s\"']*kimi-code[\\/]+[^\"'\n]*?\.[cm]?js", text)
    folder = os.path.dirname(path)
    return [
        Path(os.path.normpath(os.path.join(folder, re.sub(r"^(\$basedir|%~?dp0%?)[\\/]*", "", name))))
        for name in found
    ]


def _named_inside(path: str) -> str:
    """The package that a single-file program or script names, the vendor's first."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(PACKAGE.encode()) >= 0:
                return PACKAGE
            found = _NAMED.search(data)
            return found[0].decode("ascii", "replace") if found else ""
    except (OSError, ValueError):
        return ""


def home(given: str | None, env: Mapping[str, str]) -> Path:
    """Kimi Code's home: `--home`, else `KIMI_CODE_HOME`, else `~/.kimi-code`."""
    named = given or env.get("KIMI_CODE_HOME", "").strip()
    user = env.get("HOME") or os.path.expanduser("~")
    if not named:
        return Path(user, ".kimi-code")
    if named == "~" or named.startswith("~/"):
        named = user + named[1:]
    return Path(os.path.abspath(named))


def other_homes(used: Path, env: Mapping[str, str]) -> list[Path]:
    """Homes with a config that this one is not: the default, `KIMI_CODE_HOME`, `~/.kimi` of `kimi-cli`."""
    user = env.get("HOME") or os.path.expanduser("~")
    candidates = [Path(user, ".kimi-code"), Path(user, ".kimi")]
    if named := env.get("KIMI_CODE_HOME", "").strip():
        candidates.insert(0, Path(os.path.abspath(named)))
    return [
        path
        for path in dict.fromkeys(candidates)
        if path != used
        and os.path.realpath(path) != os.path.realpath(used)
        and any((path / name).exists() for name in ("config.toml", "config.json"))
    ]
