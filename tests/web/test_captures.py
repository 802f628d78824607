"""Every captured frame through mapping and reducer: valid, without violation, runs as the turns were."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.projection import StateProjection
from jsonschema import Draft202012Validator

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.aep.streams import StreamChecker
from handlers.mapping.web import map_frame
from tests.lifecycle.invariants import check
from tests.web.captures import VERSIONS, heard, hooks, session, turns
from tests.web.stage import Stage

DAY_MS = 24 * 3_600_000
RUN_ENDS = ("run.finished", "run.failed", "run.cancelled")


def played(root: Path, version: str, mode: Any, *, beside: bool = False, level: Any = None) -> Stage:
    posture = Posture() if level is None else Posture(capture=level, attention=level)
    stage = Stage(mode, posture)
    arrivals = [(one.at, stage.frame, one.frame) for one in heard(root, version)]
    if beside:
        arrivals += [(at, stage.hook, payload) for at, payload in hooks(root, version)]
    for at, take, given in sorted(arrivals, key=lambda arrival: arrival[0]):
        stage.wait(at)
        take(given, at)
    stage.wait(stage.at + 2 * DAY_MS)
    return stage


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_are_the_main_agents_turns(oracle_dir: Path, version: str) -> None:
    frames = heard(oracle_dir, version)
    stage = played(oracle_dir, version, "primary")
    events = [e for e in stage.events() if e["session"] == session(frames)]
    begun = [e["run"] for e in events if e["type"] == "run.started"]
    ends = {e["run"]: e for e in events if e["type"] in RUN_ENDS}
    assert [ends[run]["type"] if run in ends else None for run in begun] == [
        turn.end for turn in turns(frames)
    ]
    assert len(ends) == sum(e["type"] in RUN_ENDS for e in events)
    assert all("duration_ms" in end["data"] for end in ends.values())
    finished = [end for end in ends.values() if end["type"] == "run.finished"]
    assert all(end["data"]["gen_ai.usage.output_tokens"] > 0 for end in finished)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["companion", "primary"])
@pytest.mark.parametrize("beside", [False, True])
def test_the_sdk_sees_no_violation(oracle_dir: Path, version: str, mode: str, beside: bool) -> None:
    stage = played(oracle_dir, version, mode, beside=beside)
    projection = StateProjection()
    checker = StreamChecker()
    for event in stage.events():
        projection.apply(event)
        assert checker.check(event) == [], event
    state = projection.state()
    assert state["violations"] == []
    assert not [one for one in state["sessions"] if one["pending"]]
    assert checker.open_requests() == []
    for name in stage.shelf.states:
        if name != "unknown":
            assert not check([event for told, event in stage.told if told == name])


@pytest.mark.parametrize("version", VERSIONS)
def test_companion_mode_has_no_core_type(oracle_dir: Path, version: str) -> None:
    stage = played(oracle_dir, version, "companion")
    assert stage.types() == []
    durable = [one.frame for one in heard(oracle_dir, version) if not one.frame.get("volatile")]
    assert len(stage.told) == sum(map_frame(f, "companion", Posture()) is not None for f in durable) > 200
    assert all(not event.draft.data for _, event in stage.told)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["companion", "primary"])
def test_hooks_keep_the_core_story(oracle_dir: Path, version: str, mode: str) -> None:
    """Frames beside hooks add no core event, whichever mode is set, and change none."""
    alone = Stage()
    for at, payload in hooks(oracle_dir, version):
        alone.wait(at)
        alone.hook(payload, at)
    alone.wait(alone.at + 2 * DAY_MS)
    both = played(oracle_dir, version, mode, beside=True)
    assert Counter(both.types()) == Counter(alone.types())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["companion", "primary"])
@pytest.mark.parametrize("level", list(Capture))
def test_events_are_valid_by_the_schemas(
    oracle_dir: Path, spec_dir: Path, version: str, mode: str, level: Capture
) -> None:
    schemas = spec_dir / "schemas"
    envelope = Draft202012Validator(json.loads((schemas / "aep-event.schema.json").read_bytes()))
    payloads: dict[str, Draft202012Validator] = {}
    for event in played(oracle_dir, version, mode, level=level).events():
        envelope.validate(event)
        assert Capture(event.get("capture", "metadata")).rank <= level.rank
        if event["type"].startswith("x.") or level is Capture.NONE:
            continue
        if event["type"] not in payloads:
            path = schemas / "types" / f"{event['type']}.schema.json"
            payloads[event["type"]] = Draft202012Validator(json.loads(path.read_bytes()))
        payloads[event["type"]].validate(event.get("data", {}))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_call_and_each_request_is_paired(oracle_dir: Path, version: str) -> None:
    events = played(oracle_dir, version, "primary").events()
    by_id = {event["id"]: event for event in events}
    kinds = Counter(event["type"] for event in events)
    assert kinds["tool.requested"] == kinds["tool.completed"] + kinds["tool.failed"] == 14
    assert kinds["attention.requested"] == kinds["attention.resolved"] == 7
    assert kinds["delegation.subagent.started"] == kinds["delegation.subagent.stopped"] == 1
    assert kinds["progress.task.planned"] == kinds["progress.task.completed"] == 1
    for event in events:
        if event["type"] in ("tool.completed", "tool.failed"):
            request = by_id[event["cause"]]
            assert request["data"]["tool"] == event["data"]["tool"]
            assert event["data"]["duration_ms"] >= 0
        if event["type"] in ("attention.answered", "attention.resolved"):
            assert by_id[event["subject"]]["type"] == "attention.requested"
        if event["type"] == "delegation.subagent.started":
            assert by_id[event["cause"]]["data"]["tool"]["name"] == "Agent"
    answers = [e["data"]["answer"] for e in events if e["type"] == "attention.answered"]
    assert {"values": {"q_0": "opt_0_1"}} in answers
