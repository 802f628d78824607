"""What the tee adds to a line, side by side with the bare agent: `python -m tests.acp.latency`.

Each line carries the moment it was written; whoever reads it takes the difference. Prints a table in
milliseconds; `--json` prints the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tests.acp.harness import NOWHERE, TEE, running

AGENT = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stamps.py"))]
SERVICE = [
    sys.executable,
    "-c",
    "import sys\nfrom tests.acp.harness import Service\n"
    "with Service() as service:\n print(service.url, flush=True)\n sys.stdin.read()",
]
RATES = ((200, 600), (1_000, 3_000), (10_000, 30_000))


SETTLED_S = 1.0
"""The observer starts beside the session; what is measured is a session, not its first moment."""


def quantile(sample: list[int], part: float) -> float:
    """Milliseconds."""
    return sorted(sample)[min(len(sample) - 1, int(len(sample) * part))] / 1e6


def to_client(command: list[str], rate: int, count: int) -> list[int]:
    """Delays of lines that the agent wrote, in nanoseconds."""
    process = subprocess.Popen(
        [*command, "write", str(rate), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    with running(process):
        assert process.stdin is not None
        assert process.stdout is not None
        time.sleep(SETTLED_S)
        process.stdin.write(b"go\n")
        return delays(process.stdout.fileno())


def to_agent(command: list[str], rate: int, count: int) -> list[int]:
    """Delays of lines that the client wrote, as the agent measured them."""
    from tests.acp.stamps import write

    process = subprocess.Popen([*command, "read"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    with running(process):
        assert process.stdin is not None
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 10)
        time.sleep(SETTLED_S)
        write(process.stdin.fileno(), rate, count)
        process.stdin.close()
        return [int(word) for word in process.stdout.read().split()]


def delays(fd: int) -> list[int]:
    from tests.acp.stamps import read

    return read(fd)


def measure(rounds: int) -> list[dict[str, float | int | str]]:
    """One row for each direction, rate and way through; percentiles are medians over interleaved rounds."""
    found: dict[tuple[str, int, str], list[list[int]]] = {}
    # A process of its own: the reader of the lines must not share its interpreter.
    with running(
        subprocess.Popen(SERVICE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    ) as service:
        assert service.stdout is not None
        url = service.stdout.readline().decode().strip()
        commands = {
            "direct": AGENT,
            "tee": [*TEE, "--url", url, "--", *AGENT],
            "tee, service down": [*TEE, "--url", NOWHERE, "--", *AGENT],
        }
        for _ in range(rounds):
            for way, run in (("a2c", to_client), ("c2a", to_agent)):
                for rate, count in RATES:
                    for name, command in commands.items():
                        found.setdefault((way, rate, name), []).append(run(command, rate, count))
    return [
        {
            "dir": way,
            "rate": rate,
            "through": name,
            "lines": sum(map(len, samples)),
            "p50_ms": round(median(quantile(sample, 0.5) for sample in samples), 3),
            "p99_ms": round(median(quantile(sample, 0.99) for sample in samples), 3),
            "best_p99_ms": round(min(quantile(sample, 0.99) for sample in samples), 3),
            "max_ms": round(max(quantile(sample, 1.0) for sample in samples), 3),
        }
        for (way, rate, name), samples in found.items()
    ]


def main() -> None:
    figures = measure(3)
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for row in figures:
        print(
            f"{row['dir']}  {row['rate']:>6}/s  {row['through']:<18} {row['lines']:>6} lines"
            f"  p50 {row['p50_ms']:>6}  p99 {row['p99_ms']:>7}"
            f" (best round {row['best_p99_ms']:>6})  max {row['max_ms']:>8}"
        )


if __name__ == "__main__":
    main()
