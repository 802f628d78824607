"""The whole hook, as the agent feels it: shim, service, Redis and back."""

from __future__ import annotations

from statistics import median

from tests.bench.events import payload
from tests.bench.figures import Figure, quantile, ratio
from tests.bench.lab import Lab, Start, starts, tool
from tests.bench.shim import pinned, shim

TITLE = "Whole hook: what one event adds to the agent"


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    tiny = lab.app("tiny", "tests.bench.floors:tiny", core=1)
    service = lab.service("service", lab.redis(), core=1)
    event = payload(1 << 10, "whole")
    with pinned(lab):
        samples = starts(
            {
                "true": Start((tool("true") or "/bin/true",)),
                "shim": Start(shim(tiny.url), event),
                "hook": Start(shim(service.url), event),
            },
            lab.pick(200, 40),
        )
    true, alone, hook = (samples[name].elapsed for name in ("true", "shim", "hook"))
    added = [whole - bare for whole, bare in zip(hook, true, strict=True)]
    return [
        Figure("an empty process (floor)", median(true) * 1000, "ms"),
        Figure("shim and an empty service", median(alone) * 1000, "ms", "empty process", ratio(alone, true)),
        Figure("shim, service, Redis, reply", median(hook) * 1000, "ms", "shim alone", ratio(hook, alone)),
        Figure("added per event, p50", median(added) * 1000, "ms"),
        Figure("added per event, p99", quantile(added, 0.99) * 1000, "ms"),
    ]
