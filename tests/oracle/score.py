"""Scores the run rule on every capture: `python -m tests.oracle.score` (reads `AEP_ORACLE_DIR`).

A scenario is right when its runs are the true ones and no others: each opens at its row, has its
terminal, not before the row of its end and at most `LATE_MS` after it. A run whose end nobody saw must
still be open. `--faults` lists what is wrong.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.captures import Scenario, load
from tests.oracle.replay import HORIZON_MS, Stage, Told

LATE_MS = 5_000
DELAY_MS = 30.0
SEEDS = 12
_LATE = "late: "


@dataclass(frozen=True, slots=True)
class Score:
    """How many of `total` replays were right, and what was wrong with the others."""

    name: str
    total: int
    faults: tuple[str, ...]

    @property
    def right(self) -> int:
        return self.total - len(self.faults)

    @property
    def late(self) -> int:
        """Faults that are right but for the time they took."""
        return sum(fault.startswith(_LATE) for fault in self.faults)


def fault(scenario: Scenario) -> str | None:
    """What is wrong with the runs made of `scenario`; None when nothing is."""
    stage = Stage()
    stage.play(scenario.rows)
    stage.wait(int(max(row.at for row in scenario.rows)) + HORIZON_MS)
    begun: dict[str, Told] = {}
    ended: dict[str, Told] = {}
    for told in stage.told:
        run, kind = told.event.run, told.event.draft.type
        if run is None:
            continue
        if kind == "run.started":
            begun[run] = told
        elif kind in ("run.finished", "run.failed", "run.cancelled"):
            if run in ended:
                return f"two terminals of {run}"
            ended[run] = told
    arrivals = {row.index: row.at for row in scenario.rows}
    opened = [told.row for told in begun.values()]
    if opened != [run.open for run in scenario.runs]:
        return f"runs opened at rows {opened}"
    late = None
    for run, truth in zip(begun, scenario.runs, strict=True):
        end = ended.get(run)
        if truth.kind in ("lost", "open"):
            if end is not None and end.event.draft.type != "run.cancelled":
                return f"{end.event.draft.type} of a run whose end was not seen"
            continue
        if end is None:
            return f"still open: the run of row {truth.open}"
        if end.event.draft.type != f"run.{truth.kind}":
            return f"{end.event.draft.type} where it {truth.kind}"
        if truth.end is not None:
            wait = end.at - int(arrivals[truth.end])
            if wait < 0 and end.row != truth.open:
                return f"ended at row {end.row}, not {truth.end}"
            if wait > LATE_MS:
                late = f"{_LATE}{wait / 1000:.0f} s after row {truth.end}"
    return late


def score(name: str, scenarios: Iterable[Scenario]) -> Score:
    """The score of a set."""
    faults, total = [], 0
    for scenario in scenarios:
        total += 1
        wrong = fault(scenario)
        if wrong is not None:
            faults.append(f"{wrong} [{scenario.label}]")
    return Score(name, total, tuple(faults))


def sets(scenarios: list[Scenario]) -> list[Score]:
    """The scores in captured order, by version, and of the subagent scenarios."""
    plain = [scenario for scenario in scenarios if not scenario.subagents]
    return [
        score("0.28.0 captures", [s for s in plain if s.version == "0.28.0"]),
        score("2.1.0 captures", [s for s in plain if s.version == "2.1.0"]),
        score("subagent scenarios, both versions", [s for s in scenarios if s.subagents]),
    ]


def delayed(scenarios: list[Scenario], seeds: int = SEEDS, up_to_ms: float = DELAY_MS) -> Score:
    """The score of all, with fire-and-forget hooks late at random."""
    return score(
        f"all, fire-and-forget hooks late by up to {up_to_ms:.0f} ms, {seeds} seeds",
        (
            scenario.delayed(random.Random(f"{seed} {scenario.label}"), up_to_ms)
            for seed in range(seeds)
            for scenario in scenarios
        ),
    )


def table(scores: Iterable[Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| Set | right | faults | of these only late |", "| --- | --- | --- | --- |"]
    lines += [f"| {s.name} | {s.right} of {s.total} | {len(s.faults)} | {s.late} |" for s in scores]
    return "\n".join(lines)


def main() -> int:
    root = os.environ.get("AEP_ORACLE_DIR")
    if not root:
        print("set AEP_ORACLE_DIR to the directory of the captures", file=sys.stderr)
        return 2
    scenarios = load(Path(root))
    scores = [*sets(scenarios), delayed(scenarios)]
    print(table(scores))
    if "--faults" in sys.argv[1:]:
        for result in scores:
            for wrong in result.faults:
                print(f"{result.name}: {wrong}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
