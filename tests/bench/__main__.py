"""`python -m tests.bench [--short] [--only NAME ...] [--json FILE]`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests.bench.figures import Missing, Section, report, table
from tests.bench.lab import ROOT, Lab, machine

SECTIONS = (
    "shim",
    "hook",
    "process",
    "profile",
    "replicas",
    "sessions",
    "fanout",
    "gates",
    "digest",
    "start",
)


def measure(name: str, short: bool) -> Section:
    """One section, or why it is not there."""
    module = import_module(f"tests.bench.{name}")
    began = time.monotonic()
    try:
        with Lab(short) as lab:
            figures = tuple(module.run(lab))
    except Missing as reason:
        return Section(module.TITLE, time.monotonic() - began, skipped=str(reason))
    except Exception as error:
        traceback.print_exc()
        return Section(module.TITLE, time.monotonic() - began, skipped=f"{type(error).__name__}: {error}")
    return Section(module.TITLE, time.monotonic() - began, figures)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer rounds, under 90 seconds")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench-results/)")
    options = parser.parse_args()
    where = machine()
    print("; ".join(f"{key}: {value}" for key, value in where.items()), end="\n\n", flush=True)
    sections = []
    for name in options.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        sections.append(measure(name, options.short))
        print(table(sections[-1:]), flush=True)
    path: Path = options.json or ROOT / "bench-results" / time.strftime("%Y-%m-%dT%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report(where, sections), indent=1, ensure_ascii=False) + "\n")
    missed = sum(figure.met is False for section in sections for figure in section.figures)
    took = sum(section.seconds for section in sections)
    print(f"{took:.0f} s; {missed} targets missed; written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
