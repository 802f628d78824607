"""The mapping fixtures of AEP-0002 Annex A, the schemas' capture levels, and the captured frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.aep.registry import ADDED
from handlers.aep.validation import check_event
from handlers.mapping.acp import map_moment
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Draft, Moment
from handlers.mapping.web import map_frame
from tests.mapping.payloads import FRAMES, HOOKS, MOMENTS
from tests.mapping.support import LEVELS, as_event, drafts_of, posture

OURS = {
    ("session.started", "trigger"): Capture.METADATA,
    ("run.started", "message_digest"): Capture.METADATA,
    ("run.finished", "stop_reason"): Capture.METADATA,
    ("tool.requested", "kind"): Capture.METADATA,
    ("attention.requested", "options_count"): Capture.METADATA,
    ("attention.requested", "fields_count"): Capture.METADATA,
    ("attention.answered", "label"): Capture.REDACTED,
    ("progress.status", "severity"): Capture.METADATA,
    ("delegation.subagent.started", "prompt"): Capture.REDACTED,
    ("delegation.subagent.stopped", "response"): Capture.REDACTED,
}
"""Fields of core types that no schema names, with the level the mapping record gives them. A label at
metadata is one of the vendor's own dialog words."""


def fixture(spec_dir: Path, name: str) -> dict[str, Any]:
    path = spec_dir / "conformance" / "fixtures" / "mappings" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def shown(draft: Draft) -> dict[str, Any]:
    whole = {"type": draft.type, "data": draft.data, "subject": draft.subject}
    return {key: value for key, value in whole.items() if value is not None}


def pinned(expected: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if expected is None else [{k: v for k, v in expected.items() if k != "$comment"}]


def test_hooks(spec_dir: Path) -> None:
    kimi = fixture(spec_dir, "kimi-code")
    entries = {**kimi["hooks"], "fallback": kimi["fallback"]}
    for name, entry in entries.items():
        moment = map_hook(entry["input"], Posture())
        assert [shown(draft) for draft in moment.drafts] == pinned(entry["expected"]), name
    assert len(entries) == 21


@pytest.mark.parametrize("mode", ["companion", "primary"])
def test_web(spec_dir: Path, mode: Any) -> None:
    for name, entry in fixture(spec_dir, "kimi-code")["ws_modes"]["modes"].items():
        moment = map_frame(entry["input"], mode, Posture())
        drafts = () if moment is None else moment.drafts
        assert [shown(draft) for draft in drafts] == pinned(entry[mode]), name


def test_acp(spec_dir: Path) -> None:
    acp = fixture(spec_dir, "acp")
    with_deltas = Posture(capture=Capture.REDACTED, acp_deltas=True)
    for name, entry in {**acp["moments"], "fallback": acp["fallback"]}.items():
        heard = entry["input"]
        body = heard.get("params", heard.get("result"))
        moment = map_moment(heard["kind"], heard["method"], body, Posture())
        assert [shown(draft) for draft in moment.drafts] == entry["expected"], name
        if "deltas_expected" in entry:
            moment = map_moment(heard["kind"], heard["method"], body, with_deltas)
            assert [shown(draft) for draft in moment.drafts] == entry["deltas_expected"], name


def test_a_hop_of_ours_knows_the_content_that_no_schema_names() -> None:
    added = {(event, field): level for event, fields in ADDED.items() for field, level in fields.items()}
    assert added == {key: level for key, level in OURS.items() if level is not Capture.METADATA}


def moments(level: Capture) -> Iterator[Moment]:
    at = posture(level, acp_deltas=True)
    for payload in HOOKS.values():
        yield map_hook(payload, at)
    for frame in FRAMES.values():
        for mode in ("companion", "primary"):
            moment = map_frame(frame, "primary" if mode == "primary" else "companion", at)
            if moment is not None:
                yield moment
    for kind, method, body in MOMENTS.values():
        heard: Any = kind
        yield map_moment(heard, method, body, at)


@pytest.mark.parametrize("level", LEVELS)
def test_no_field_above_its_level(spec_dir: Path, level: Capture) -> None:
    """Every field of every core event stands at or above the level its schema gives it."""
    seen = 0
    for moment in moments(level):
        for draft in drafts_of(moment):
            path = spec_dir / "schemas" / "types" / f"{draft.type}.schema.json"
            if not draft.type.startswith("x."):
                seen += 1
                _check(draft.type, draft.data, json.loads(path.read_text("utf-8")), draft.capture)
    assert seen > 40


def _check(event_type: str, data: dict[str, Any], schema: dict[str, Any], level: Capture) -> None:
    for key, value in data.items():
        known = schema.get("properties", {}).get(key)
        if known is None:
            if key == "truncated" or "properties" not in schema:
                continue
            needed = OURS[(event_type, key)]
            assert level.allows(needed) or value == "Approve once", (event_type, key)
            continue
        assert level.allows(Capture(known.get("x-aep-capture", "metadata"))), (event_type, key)
        inner = value if isinstance(value, list) else [value]
        for one in inner:
            if isinstance(one, dict):
                _check(event_type, one, known.get("items", known), level)


@pytest.mark.parametrize("level", LEVELS)
def test_events_satisfy_the_schemas(spec_dir: Path, level: Capture) -> None:
    """The published schemas themselves, beside our own validation."""
    envelope = _validator(spec_dir / "schemas" / "aep-event.schema.json")
    payloads: dict[str, Draft202012Validator] = {}
    for moment in moments(level):
        for draft in drafts_of(moment):
            event = as_event(draft)
            envelope.validate(event)
            if "data" in event and not draft.type.startswith("x."):
                if draft.type not in payloads:
                    path = spec_dir / "schemas" / "types" / f"{draft.type}.schema.json"
                    payloads[draft.type] = _validator(path)
                payloads[draft.type].validate(event["data"])


def _validator(path: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(path.read_text("utf-8")))


def captured(oracle_dir: Path, name: str) -> Iterator[dict[str, Any]]:
    for path in sorted(oracle_dir.glob(f"*/{name}")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


@pytest.mark.parametrize("level", [Capture.METADATA, Capture.FULL])
def test_captured_hooks(oracle_dir: Path, level: Capture) -> None:
    seen = 0
    for name in ("hooks.jsonl", "hooks-subagents.jsonl"):
        for row in captured(oracle_dir, name):
            if row.get("payload"):
                seen += 1
                moment = map_hook(row["payload"], posture(level))
                assert moment.name == row["event"]
                _assert_events(moment)
                if level is Capture.METADATA:
                    assert "/home/user" not in json.dumps([draft.data for draft in moment.drafts])
    assert seen > 1000


@pytest.mark.parametrize("mode", ["companion", "primary"])
def test_captured_frames(oracle_dir: Path, mode: Any) -> None:
    seen = 0
    for row in captured(oracle_dir, "web-frames.jsonl"):
        frame = row.get("frame")
        if isinstance(frame, dict) and row["dir"] == "recv":
            moment = map_frame(frame, mode, Posture())
            assert moment is None or not frame.get("volatile")
            if moment is None:
                continue
            seen += 1
            _assert_events(moment)
            assert moment.time_ms is not None
            if mode == "companion":
                assert all(d.type.startswith("x.kimi-code.web.") and d.data == {} for d in moment.drafts)
    assert seen > 700


def test_captured_acp(oracle_dir: Path) -> None:
    """Joined by id, direction and connection, as a tee sees it."""
    asked: dict[tuple[Any, ...], tuple[str, Any]] = {}
    seen = 0
    for row in captured(oracle_dir, "acp.jsonl"):
        message = row.get("msg")
        if not isinstance(message, dict) or "jsonrpc" not in message:
            continue
        seen += 1
        kind: Any
        if "method" in message:
            kind = "request" if "id" in message else "notification"
            asked[row["conn"], row["dir"], message.get("id")] = message["method"], message.get("params")
            moment = map_moment(kind, message["method"], message.get("params"), Posture())
        else:
            there = "agent->client" if row["dir"] == "client->agent" else "client->agent"
            method, params = asked[row["conn"], there, message["id"]]
            kind = "error" if "error" in message else "response"
            body = message.get("error", message.get("result"))
            moment = map_moment(kind, method, body, Posture(), asked=params)
        _assert_events(moment)
    assert seen > 300


def _assert_events(moment: Moment) -> None:
    for draft in drafts_of(moment):
        assert check_event(as_event(draft)) == []
