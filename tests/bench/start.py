"""Cold starts: what an import costs, what it brings along, and the way from `serve` to the first event."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tests.bench.events import payload
from tests.bench.figures import Figure, Missing, ratio
from tests.bench.lab import TOKEN, Lab, Server, Start, post, starts

TITLE = "Cold start"
_PARTS = {
    "the protocol and mapping (pure)": "import handlers.aep.envelope, handlers.mapping.hooks",
    "the Lambda handler": "import handlers.aws",
    "the service": "import handlers.app",
    "the command line": "import deploy.cli.main",
}
# What none of these should bring along before it is used.
_UNWANTED = (
    "fakeredis",
    "lupa",
    "httpx2",
    "websockets",
    "tomlkit",
    "jsonschema",
    "hypothesis",
    "pytest",
    "rich",
)


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    bare = "python -c pass"
    programs = {"bare": Start((sys.executable, "-c", "pass"))}
    brought: dict[str, list[str]] = {}
    for name, statement in _PARTS.items():
        check = f"{statement}; import sys; print(*[m for m in {_UNWANTED!r} if m in sys.modules])"
        found = subprocess.run((sys.executable, "-c", check), capture_output=True, text=True, check=False)
        if found.returncode == 0:
            programs[name] = Start((sys.executable, "-c", statement))
            brought[name] = found.stdout.split()
    samples = starts(programs, lab.pick(15, 4))
    floor = samples.pop("bare").elapsed
    figures = [Figure("bare interpreter with site (floor)", median(floor) * 1000, "ms")]
    for name, one in samples.items():
        label = f"{name}, needless: {' '.join(brought[name]) or 'nothing'}"
        figures.append(Figure(label, median(one.elapsed) * 1000, "ms", bare, ratio(one.elapsed, floor)))
    with contextlib.suppress(Missing):
        figures.append(_first_event(lab))
    return figures


def _first_event(lab: Lab) -> Figure:
    """`aep-kimi serve` with its own Redis, data directory new each time, until an event is stored."""
    script = Path(sys.executable).parent / "aep-kimi"
    if not script.exists():
        raise Missing("aep-kimi is not installed")
    took = []
    for turn in range(lab.pick(5, 2)):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        environment = {"AEP_DATA_DIR": str(lab.directory / f"data{turn}"), "AEP_TOKEN": TOKEN}
        began = time.perf_counter()
        process = lab.start(
            f"serve{turn}",
            (str(script), "serve", "--port", str(port)),
            environment=environment,
            core=os.getpid(),
        )
        server = Server("serve", process, port)
        while time.perf_counter() - began < 20 and process.poll() is None:
            with contextlib.suppress(OSError):
                if post(server, payload(1 << 10)) == "yes":
                    took.append(time.perf_counter() - began)
                    break
            time.sleep(0.005)
        server.stop()
    if not took:
        raise Missing("aep-kimi serve does not store events yet")
    return Figure("aep-kimi serve with its own Redis, to the first stored event", median(took) * 1000, "ms")
