"""The fixtures and schemas of AEP itself, against our own code (`AEP_SPEC_DIR`)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from handlers.aep import registry
from handlers.aep.capture import downlevel, gate_values
from handlers.aep.filters import parse_filter
from handlers.aep.levels import Capture, Severity
from handlers.aep.redaction import Redactor
from handlers.aep.shapes import Shape
from handlers.aep.streams import StreamChecker
from handlers.aep.validation import check_event, check_payload
from handlers.errors import InvalidFilter


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def fixture(spec_dir: Path, name: str) -> Any:
    return load(spec_dir / "conformance" / "fixtures" / name / "cases.json")


@pytest.fixture(scope="session")
def golden(spec_dir: Path) -> list[dict[str, Any]]:
    path = spec_dir / "conformance" / "fixtures" / "golden" / "golden.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="session")
def envelope(spec_dir: Path) -> Draft202012Validator:
    return Draft202012Validator(load(spec_dir / "schemas" / "aep-event.schema.json"))


@pytest.fixture(scope="session")
def payload_schemas(spec_dir: Path) -> dict[str, Any]:
    found = (spec_dir / "schemas" / "types").glob("*.schema.json")
    return {path.name.removesuffix(".schema.json"): load(path) for path in found}


def report(failed: list[str], total: int) -> None:
    assert total
    assert not failed, f"{total - len(failed)} of {total}; failed: {failed}"


def test_redaction(spec_dir: Path) -> None:
    cases = fixture(spec_dir, "redaction")
    failed = []
    for case in [*cases["text_cases"], *cases["value_cases"]]:
        options = case.get("opts", {})
        redactor = Redactor(
            secrets=tuple(options.get("secretValues", ())),
            homes=(options.get("home", "/nonexistent-home"),),
            pii=options.get("pii", True),
        )
        given_ = case["input"]
        out = redactor.text(given_) if isinstance(given_, str) else json.dumps(redactor.value(given_))
        leaked = any(word in out for word in case.get("must_not_contain", ()))
        if leaked or not all(word in out for word in case.get("must_contain", ())):
            failed.append(case["name"])
    report(failed, len(cases["text_cases"]) + len(cases["value_cases"]))


def test_capture_gating(spec_dir: Path) -> None:
    cases = fixture(spec_dir, "capture-gating")["cases"]
    failed = [
        case["name"]
        for case in cases
        if gate_values(case["fields"], case["values"], Capture(case["ceiling"])) != case["expect"]
    ]
    report(failed, len(cases))


def test_downlevel(spec_dir: Path) -> None:
    cases = fixture(spec_dir, "downlevel")["cases"]
    failed = []
    for case in cases:
        before = copy.deepcopy(case["event"])
        passed = downlevel(case["event"], Capture(case["ceiling"]))
        same = passed.get("capture") == case["expect_capture"] and passed.get("data") == case["expect_data"]
        if not same or case["event"] != before:
            failed.append(case["name"])
    report(failed, len(cases))


def test_attr_match(spec_dir: Path) -> None:
    cases = fixture(spec_dir, "attr-match")
    failed = [
        case["name"]
        for case in cases["match"]
        if parse_filter(case["filter"]).matches(case["event"]) is not case["match"]
    ]
    for case in cases["invalid"]:
        try:
            parse_filter(case["filter"])
            failed.append(case["name"])
        except InvalidFilter:
            continue
    report(failed, len(cases["match"]) + len(cases["invalid"]))


def test_golden(golden: list[dict[str, Any]]) -> None:
    checker = StreamChecker()
    failed = [f"{event['id']}: {problem}" for event in golden for problem in checker.check(event)]
    report(failed, len(golden))


def test_invalid(spec_dir: Path) -> None:
    cases = fixture(spec_dir, "invalid")["cases"]
    failed = []
    for case in cases:
        checker = StreamChecker()
        if not any([checker.check(event) for event in case.get("events") or [case["event"]]]):
            failed.append(case["name"])
    report(failed, len(cases))


def test_registry(spec_dir: Path) -> None:
    folder = spec_dir / "schemas" / "registry"
    types = load(folder / "types.json")["types"]
    assert {name: (spec.status, spec.scope) for name, spec in registry.TYPES.items()} == {
        entry["type"]: (entry["status"], entry["scope"]) for entry in types
    }
    assert [entry["name"] for entry in load(folder / "categories.json")["categories"]] == list(
        registry.CATEGORIES
    )
    assert load(folder / "capture.json")["order"] == [level.value for level in Capture]
    assert load(folder / "severity.json")["order"] == [level.value for level in Severity]
    assert load(folder / "nack-reasons.json")["reasons"] == list(registry.NACK_REASONS)


def of_schema(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything a payload schema says, field by field."""
    kind = schema.get("type", "any")
    kind = "|".join(sorted(kind)) if isinstance(kind, list) else kind
    words = frozenset(schema.get("enum", ()))
    yield (
        path,
        (
            "any" if words else kind,
            words,
            schema.get("minimum"),
            schema.get("maximum"),
            frozenset(schema.get("required", ())),
            bool(schema.get("if")),
        ),
    )
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name} level", member.get("x-aep-capture", "metadata")
        yield from of_schema(member, f"{path}.{name}")
    if "items" in schema:
        yield from of_schema(schema["items"], f"{path}[]")


def of_shape(shape: Shape, path: str = "") -> Iterator[tuple[str, Any]]:
    """The same of a shape."""
    required = frozenset(name for name, member in shape.fields.items() if member.required)
    yield (
        path,
        (
            shape.kind,
            shape.words,
            shape.minimum,
            shape.maximum,
            required,
            bool(shape.needed_with),
        ),
    )
    for name, member in shape.fields.items():
        yield f"{path}.{name} level", member.level.value
        yield from of_shape(member, f"{path}.{name}")
    if shape.items is not None:
        yield from of_shape(shape.items, f"{path}[]")


def test_every_payload_says_what_its_schema_says(payload_schemas: dict[str, Any]) -> None:
    ours = {name: spec.payload for name, spec in registry.TYPES.items() if spec.payload is not None}
    assert ours.keys() == payload_schemas.keys()
    for name, schema in payload_schemas.items():
        assert dict(of_shape(ours[name])) == dict(of_schema(schema)), name


WRONG = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 1.0, 1.5, 101, 2**70, [], ["x"], [{}], {}, {"name": 1}, {"id": "1"}),
        *("", "x", "tool", "select", "redacted", "agent.idle", "control.pause", "x.a.b.c", "x.a.control.c"),
    ]
)


@st.composite
def damaged(draw: st.DrawFn, value: Any, depth: int = 0) -> Any:
    """A JSON value with a member somewhere removed, added or replaced."""
    if not isinstance(value, dict | list) or not value or (depth and draw(st.integers(0, 2)) == 0):
        return draw(WRONG)
    hurt = copy.copy(value)
    where = draw(st.sampled_from(sorted(hurt) if isinstance(hurt, dict) else range(len(hurt))))
    match draw(st.integers(0, 3)):
        case 0:
            del hurt[where]
        case 1 if isinstance(hurt, dict):
            hurt[draw(st.sampled_from(["acmeext", "Acme", "a_b", "", "seq", "session", "run", "data"]))] = (
                draw(WRONG)
            )
        case _:
            hurt[where] = draw(damaged(hurt[where], depth + 1))
    return hurt


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_the_verdict_is_that_of_the_schemas(
    data: st.DataObject,
    golden: list[dict[str, Any]],
    envelope: Draft202012Validator,
    payload_schemas: dict[str, Any],
) -> None:
    event = data.draw(st.sampled_from(golden))
    for _ in range(data.draw(st.integers(1, 3))):
        event = data.draw(damaged(event)) if isinstance(event, dict) and event else event
    if isinstance(event, dict):
        # formats are only annotations to a schema; ours reads them, so they stay whole here
        event = {name: value for name, value in event.items() if name not in ("time", "source")} | {
            "time": "2026-11-30T16:37:13Z",
            "source": "aep://h/agent/a",
        }
    valid = envelope.is_valid(event)
    if valid and isinstance(event, dict) and event["type"] in payload_schemas and "data" in event:
        schema = Draft202012Validator(payload_schemas[event["type"]])
        valid = schema.is_valid(event["data"])
        assert (not check_payload(event["type"], event["data"])) is valid
    assert (not check_event(event)) is valid, event
