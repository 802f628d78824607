"""The canonical digest against the fastest JSON library and SHA-256, which together are not canonical."""

from __future__ import annotations

import json
import time
import timeit
from collections.abc import Callable
from hashlib import sha256
from statistics import median

import orjson

from tests.bench.figures import BLOCKS, Figure, Missing, ratio
from tests.bench.lab import Lab

TITLE = "Canonical digest"


def _sizes() -> dict[str, object]:
    text = 'a line of text with "quotes" and a newline\n'
    return {
        "100 B": {
            "command": "ls -la",
            "timeout": 60,
            "cwd": "/home/user/project",
            "z": [1, 2, 3],
            "flag": True,
        },
        "1 KB": {"files": [{"path": f"src/{n}.py", "lines": n, "ok": True} for n in range(25)]},
        "20 KB": {"files": [{"path": f"src/{n}.py", "lines": n, "text": text} for n in range(220)]},
        "1 MB of text": {"content": text * 22_000},
        "1 MB of numbers": {"values": [n * 1.1 for n in range(55_000)]},
    }


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    try:
        from handlers.aep.canonical import digest
    except ImportError:
        raise Missing("handlers.aep.canonical is not there yet") from None

    def floor(value: object) -> str:
        return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]

    figures = []
    for name, plain in _sizes().items():
        value = json.loads(json.dumps(plain))
        number = max(1, int(0.005 / min(_time(floor, value, 1) for _ in range(3))))
        ours: list[float] = []
        floors: list[float] = []
        began = time.monotonic()
        while len(ours) < BLOCKS or time.monotonic() - began < lab.pick(20, 5) / 10:
            for samples, function in ((ours, digest), (floors, floor)):
                samples.append(_time(function, value, number))
        share = ratio(ours, floors)
        figures.append(Figure(name, median(ours) * 1e6, "µs", "orjson, sorted, SHA-256", share))
    return figures


def _time(function: Callable[..., object], value: object, number: int) -> float:
    return timeit.timeit(lambda: function(value), number=number) / number
