"""Every captured scenario over HTTP, through the real app and a real Redis, with the capture's own clock.

What comes out is valid against the schemas, without a violation for the SDK's state projection, never above
its declared capture level, and its runs are the labelled ones. Prints the table of the score.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.projection import StateProjection
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from referencing import Registry, Resource

from handlers.aep.capture import downlevel
from handlers.aep.levels import Capture
from tests.app.replica import Event, MovableClock, Replica, running
from tests.oracle.captures import Scenario, load
from tests.servers import AnyServer

pytestmark = pytest.mark.slow

HORIZON_MS = 70_000
STEP_MS = 500
LATE_MS = 5_000
TERMINALS = {"run.finished": "finished", "run.failed": "failed", "run.cancelled": "cancelled"}


@dataclass
class Schemas:
    """The envelope's schema and one for each registered type, of the specification's repository."""

    envelope: Validator
    types: dict[str, Validator]

    def problems(self, event: Event) -> list[str]:
        found = [f"{event['type']}: {error.message}" for error in self.envelope.iter_errors(event)]
        payload = self.types.get(event["type"])
        if payload is not None and event.get("capture", "metadata") != "none":
            found += [
                f"{event['type']}: {error.message}" for error in payload.iter_errors(event.get("data", {}))
            ]
        return found


@pytest.fixture(scope="module")
def schemas(spec_dir: Path) -> Schemas:
    files = {path: json.loads(path.read_bytes()) for path in (spec_dir / "schemas").rglob("*.json")}
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in files.values() if "$id" in schema
    )

    def validator(schema: Any) -> Validator:
        return Draft202012Validator(schema, registry=registry)

    types = {
        path.name.removesuffix(".schema.json"): validator(schema)
        for path, schema in files.items()
        if path.parent.name == "types"
    }
    return Schemas(validator(files[spec_dir / "schemas" / "aep-event.schema.json"]), types)


@dataclass
class Tally:
    """How a set of scenarios came out."""

    total: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def late(self) -> int:
        return sum(fault.startswith("late") for fault in self.faults)


async def play(replica: Replica, clock: MovableClock, scenario: Scenario) -> list[Event]:
    """Let the scenario happen, sweeping as time passes, and return what the stream holds of it."""
    rows = [row for row in scenario.rows if row.payload is not None]
    clock.fixed = int(rows[0].at)
    for row in rows:
        await advance(replica, clock, int(row.at))
        response = await replica.client.post("/hook", json=row.payload)
        assert response.status_code == 200
        assert response.json() == {}
        assert response.headers["aep-stored"] == "yes"
    await advance(replica, clock, int(rows[-1].at) + LATE_MS)
    await advance(replica, clock, int(rows[-1].at) + HORIZON_MS, step=LATE_MS)
    return (await replica.replay()).events


async def advance(replica: Replica, clock: MovableClock, until: int, step: int = STEP_MS) -> None:
    assert clock.fixed is not None
    while clock.fixed < until:
        clock.fixed = min(until, clock.fixed + step)
        await replica.service.sweeper.sweep()


def moment(event: Event) -> int:
    return round(datetime.fromisoformat(event["time"]).timestamp() * 1000)


def fault(scenario: Scenario, events: list[Event]) -> str | None:
    """What is wrong with the runs of a scenario; None when nothing is."""
    begun: dict[str, Event] = {}
    ended: dict[str, Event] = {}
    for event in events:
        if event["type"] == "run.started":
            begun[event["run"]] = event
        elif event["type"] in TERMINALS:
            assert event["run"] not in ended, "two terminals of one run"
            ended[event["run"]] = event
    assert set(ended) <= set(begun)
    arrivals = {row.index: int(row.at) for row in scenario.rows}
    starts = sorted(begun.values(), key=moment)
    truths = sorted(scenario.runs, key=lambda run: run.open)
    if [moment(event) for event in starts] != [arrivals[run.open] for run in truths]:
        return f"{len(starts)} runs where there are {len(truths)}, or not at their rows"
    late = None
    for start, truth in zip(starts, truths, strict=True):
        end = ended.get(start["run"])
        if truth.kind in ("lost", "open"):
            if end is not None and end["type"] != "run.cancelled":
                return f"{end['type']} of a run whose end was not seen"
            continue
        if end is None:
            return f"still open: the run of row {truth.open}"
        if TERMINALS[end["type"]] != truth.kind:
            return f"{end['type']} where it {truth.kind}"
        if truth.end is not None:
            wait = moment(end) - arrivals[truth.end]
            if wait < 0 and moment(end) != arrivals[truth.open]:
                return "ended before its row"
            if wait > LATE_MS:
                late = f"late: {wait / 1000:.0f} s"
    return late


def check(events: list[Event], schemas: Schemas, ceilings: dict[str, Capture]) -> None:
    """What must hold for any stream of ours."""
    projection = StateProjection()
    positions: dict[tuple[str, str], int] = {}
    for event in events:
        assert schemas.problems(event) == [], event
        declared = Capture(event.get("capture", "metadata"))
        ceiling = ceilings["attention" if event["type"].startswith("attention.") else "other"]
        assert ceiling.allows(declared), event
        assert downlevel(event, declared) == event
        projection.apply(event)
        key = event["source"], event["session"]
        assert event["seq"] > positions.get(key, -1)
        positions[key] = event["seq"]
    assert projection.state()["violations"] == []


def groups(scenarios: list[Scenario]) -> Iterator[tuple[str, list[Scenario]]]:
    yield "0.28.0", [each for each in scenarios if each.version == "0.28.0" and not each.subagents]
    yield "2.1.0", [each for each in scenarios if each.version == "2.1.0" and not each.subagents]
    yield "subagents", [each for each in scenarios if each.subagents]


@pytest.mark.parametrize("capture", [Capture.METADATA, Capture.FULL])
async def test_every_scenario(
    redis_server: AnyServer, oracle_dir: Path, schemas: Schemas, capture: Capture
) -> None:
    attention = max(capture, Capture.REDACTED, key=lambda level: level.rank)
    tallies: dict[str, Tally] = {}
    count = 0
    for name, scenarios in groups(load(oracle_dir)):
        tally = tallies[name] = Tally()
        for scenario in scenarios:
            clock = MovableClock(0)
            async with running(
                redis_server, clock=clock, capture=capture, capture_attention=attention
            ) as replica:
                events = await play(replica, clock, scenario)
            check(events, schemas, {"attention": attention, "other": capture})
            count += len(events)
            tally.total += 1
            wrong = fault(scenario, events)
            if wrong is not None:
                tally.faults.append(f"{wrong} [{scenario.label}]")
    print(f"\ncapture {capture}: {count} events")
    print("| set | right | only late |\n| --- | --- | --- |")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.total - len(tally.faults)} of {tally.total} | {tally.late} |")
    for tally in tallies.values():
        assert len(tally.faults) <= 1, tally.faults
        assert tally.late == len(tally.faults), tally.faults
    assert not tallies["2.1.0"].faults
