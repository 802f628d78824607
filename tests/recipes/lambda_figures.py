"""`python -m tests.recipes.lambda_figures`: what the Lambda handler costs, cold and warm, by kind of event.

It runs the real handler against a server of its own, on this machine. What AWS adds (the sandbox's start, the
network) is not in it, and its processors are slower below 1769 MB: see docs/deploy.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.app.aws_container import hook_ask
from tests.app.aws_events import EVERY, TOKEN
from tests.servers import Server

KINDS = ("rest", "http-2.0", "function-url")
COLD = 7
WARM = 400
_PROGRAM = """
import json, sys, time
began = time.perf_counter()
import handlers.aws
imported = time.perf_counter()
import resource
class Limit:
    def get_remaining_time_in_millis(self):
        return 30_000
spans = []
for line in sys.stdin:
    event = json.loads(line)
    at = time.perf_counter()
    answer = handlers.aws.handler(event, Limit())
    spans.append(time.perf_counter() - at)
    headers = dict(answer.get("headers") or {})
    assert headers["aep-stored"] == "yes", answer
kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"import": imported - began, "spans": spans, "mib": kib / 1024}))
"""


def run(events: Sequence[dict[str, Any]], environment: dict[str, str]) -> dict[str, Any]:
    """Hand events to a new interpreter; seconds of its import and of each event, and its memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input="".join(json.dumps(event) + "\n" for event in events),
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    server = Server(aof=True)
    environment = {"AEP_REDIS_URL": server.url, "AEP_TOKEN": TOKEN, "AEP_HOOK_TIMEOUT_MS": "5000"}
    try:
        print(f"{'event':14} {'import':>9} {'first':>9} {'warm p50':>9} {'warm p99':>9} {'memory':>9}")
        for name in KINDS:
            made = [
                EVERY[name](
                    hook_ask("Notification", f"{name}-{number % 20}", message="m", encoded=number % 2 == 1)
                )
                for number in range(WARM)
            ]
            cold = [run(made[:1], environment) for _ in range(COLD)]
            warm = run(made, environment)
            spans = sorted(warm["spans"][1:])
            values = (
                median(one["import"] for one in cold) * 1000,
                median(one["spans"][0] for one in cold) * 1000,
                median(spans) * 1000,
                spans[int(len(spans) * 0.99)] * 1000,
            )
            print(
                f"{name:14} " + " ".join(f"{value:6.1f} ms" for value in values) + f" {warm['mib']:5.0f} MiB"
            )
    finally:
        server.stop()


if __name__ == "__main__":
    main()
