"""Where the processor time of one event goes, without the HTTP server around the application."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from tests.bench.figures import Figure, Missing, Ratio, spread
from tests.bench.inside import STEPS
from tests.bench.lab import ROOT, Lab

TITLE = "Profile: processor time of one event in the application, c=32"


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    redis = lab.redis()
    rounds = lab.pick(3, 2)
    found = [_inside(lab, redis.url, lab.pick(15, 6)) for _ in range(rounds)]
    whole = [one["service"] for one in found]

    def figure(name: str, values: list[float], floor: str, against: list[float], target: str = "") -> Figure:
        shares = [value / other for value, other in zip(values, against, strict=True)]
        share = Ratio(median(shares), spread(shares))
        return Figure(name, median(values), "µs", floor, share, target)

    echo, script = ([one[name] for one in found] for name in ("echo", "script"))
    figures = [
        Figure("echo floor", median(echo), "µs"),
        Figure("EVALSHA floor", median(script), "µs"),
        figure("the whole", whole, "EVALSHA floor", script),
    ]
    pure = [0.0] * rounds
    for step in STEPS:
        values = [one[step] for one in found]
        pure = [before + value for before, value in zip(pure, values, strict=True)]
        figures.append(figure(f"of that: {step}", values, "the whole", whole))
    rest = [all_of_it - part for all_of_it, part in zip(whole, pure, strict=True)]
    figures.append(figure("of that: HTTP, auth, engine, Redis client, event loop", rest, "the whole", whole))
    return figures


def _inside(lab: Lab, redis: str, rounds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.inside", json.dumps({"redis": redis, "rounds": rounds})]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    lab.pin(process.pid, 0)
    output, errors = process.communicate()
    if process.returncode:
        raise Missing(f"the profile failed: {errors.decode().strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(output)
    return result
