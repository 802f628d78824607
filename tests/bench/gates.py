"""Held gates: what a call that waits for a human costs, and how soon it wakes."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from statistics import median

from tests.bench.figures import Figure, Missing, ratio
from tests.bench.lab import ROOT, TOKEN, Lab, Server

TITLE = "Held gates: from the answer of a human to the whole reply of the held hook"
_SPARE = 1_000


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    limit = _files()
    redis = lab.redis()
    floor = lab.app("hold", "tests.bench.floors:hold", {"BENCH_REDIS_URL": redis.url})
    settings: dict[str, str] = {
        "AEP_KIMI_CONTROL": "1",
        "AEP_KIMI_GATE_TOOLS": "Bash",
        "AEP_ATTENTION_TIMEOUT_MS": "500000",
        "AEP_MAX_HELD": "20000",
    }
    service = lab.service("service", redis, settings=settings)
    figures = []
    for held in (1, 100) if lab.short else (1, 100, 2_000, 8_000):
        if held + _SPARE > limit:
            figures.append(
                Figure(f"{held:,} held: more than the open files this system allows", limit, "files")
            )
            continue
        rounds = lab.pick(9, 3) if held == 1 else lab.pick(3, 1) if held == 100 else 1
        ours, floors = [], []
        for turn in range(rounds):
            ours.append(_hold(lab, service, held, f"h{held}-{turn}", floor=False))
            floors.append(_hold(lab, floor, held, f"h{held}-{turn}", floor=True))
        for name in ("p50", "p99"):
            mine, theirs = ([one[name] for one in series] for series in (ours, floors))
            figures.append(
                Figure(
                    f"{held:,} held, wake {name}",
                    median(mine) * 1000,
                    "ms",
                    "shared subscription, GETDEL",
                    ratio(mine, theirs),
                    "<= 2" if name == "p50" else "",
                )
            )
        if held > 100:
            mine, theirs = ([one["memory"] for one in series] for series in (ours, floors))
            share = ratio(mine, theirs)
            figures.append(
                Figure(f"{held:,} held, memory each", mine[0] / 1024, "KiB", "bare held request", share)
            )
    return figures


def _files() -> int:
    """As many open files as may be: the holder and the held need one each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 65_536 if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _hold(lab: Lab, server: Server, held: int, name: str, *, floor: bool) -> dict[str, float]:
    """One round; `memory` in bytes for each held request, its connection and its session included."""
    wanted = {
        "port": server.port,
        "token": TOKEN,
        "held": held,
        "wakes": min(held, lab.pick(200, 50)),
        "name": name,
        "floor": floor,
    }
    before = server.memory()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.hold", json.dumps(wanted)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    lab.pin(process.pid, 1)
    assert process.stdin
    assert process.stdout
    ready = process.stdout.readline()
    memory = (server.memory() - before) / held
    output, errors = process.communicate("go\n")
    if process.returncode or not ready:
        raise Missing(f"holding failed: {errors.strip().splitlines()[-1:]}")
    result: dict[str, float] = json.loads(output)
    return result | {"memory": memory}
