"""Every capture as finished events: valid by the schemas, and without violation in the official SDK."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from aep_sdk.projection import StateProjection
from jsonschema import Draft202012Validator

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.aep.streams import StreamChecker
from tests.lifecycle.invariants import check
from tests.lifecycle.shelf import finished
from tests.oracle.captures import VERSIONS, Scenario, load
from tests.oracle.replay import HORIZON_MS, Stage, Told

DAY_MS = 24 * 3_600_000


@pytest.fixture(scope="module")
def scenarios(oracle_dir: Path) -> list[Scenario]:
    return load(oracle_dir)


def _whole_version(scenarios: list[Scenario], version: str, posture: Posture) -> Stage:
    """All scenarios of a version in the order of the capture, as one service saw them."""
    stage = Stage(posture)
    rows = [row for scenario in scenarios if scenario.version == version for row in scenario.rows]
    stage.play(sorted(rows, key=lambda row: row.at))
    stage.wait(int(max(row.at for row in rows)) + 2 * DAY_MS)
    return stage


def _by_session(stage: Stage) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = {}
    for told in stage.told:
        found.setdefault(told.session, []).append(told)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sdk_sees_no_violation(scenarios: list[Scenario], version: str) -> None:
    stage = _whole_version(scenarios, version, Posture())
    projection = StateProjection()
    for told in stage.told:
        projection.apply(finished(told.event, told.session))
    state = projection.state()
    assert state["violations"] == []
    assert len(state["sessions"]) == len(stage.shelf.states)
    assert not [session for session in state["sessions"] if session["pending"]]
    unsure = [run for session in state["sessions"] for run in session["runs"] if run["status"] == "running"]
    lost = sum(run.kind in ("lost", "open") for s in scenarios if s.version == version for run in s.runs)
    assert len(unsure) <= lost


@pytest.mark.parametrize("seed", range(4))
def test_the_sdk_sees_no_violation_under_delays(scenarios: list[Scenario], seed: int) -> None:
    for scenario in scenarios:
        stage = Stage()
        late = scenario.delayed(random.Random(f"{seed} {scenario.label}"), 60)
        stage.play(late.rows)
        stage.wait(int(late.rows[-1].at) + HORIZON_MS)
        projection = StateProjection()
        for told in stage.told:
            projection.apply(finished(told.event, told.session))
        assert projection.state()["violations"] == [], scenario.label


@pytest.mark.parametrize("version", VERSIONS)
def test_every_invariant_holds(scenarios: list[Scenario], version: str) -> None:
    for session, told in _by_session(_whole_version(scenarios, version, Posture())).items():
        if session != "unknown":
            assert not check([item.event for item in told])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", list(Capture))
def test_every_event_is_valid_and_holds_no_more_than_its_capture(
    scenarios: list[Scenario], version: str, level: Capture
) -> None:
    checker = StreamChecker()
    kinds = Counter[str]()
    for told in _whole_version(scenarios, version, Posture(capture=level, attention=level)).told:
        event = finished(told.event, told.session)
        kinds[event["type"]] += 1
        assert checker.check(event) == [], event
        assert Capture(event.get("capture", "metadata")).rank <= level.rank
    assert checker.open_requests() == []
    assert len(kinds) > 20


@pytest.mark.parametrize("version", VERSIONS)
def test_every_event_satisfies_the_published_schemas(
    scenarios: list[Scenario], spec_dir: Path, version: str
) -> None:
    schemas = spec_dir / "schemas"
    envelope = Draft202012Validator(json.loads((schemas / "aep-event.schema.json").read_bytes()))
    payloads: dict[str, Draft202012Validator] = {}
    for told in _whole_version(scenarios, version, Posture(capture=Capture.FULL)).told:
        event = finished(told.event, told.session)
        envelope.validate(event)
        if event["type"].startswith("x."):
            continue
        if event["type"] not in payloads:
            path = schemas / "types" / f"{event['type']}.schema.json"
            payloads[event["type"]] = Draft202012Validator(json.loads(path.read_bytes()))
        payloads[event["type"]].validate(event.get("data", {}))
