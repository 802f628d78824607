"""Finished events: valid whatever the strings hold, bounded, and in a fixed order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.envelope import SEQ_ORIGIN_MS, finish, position, rfc3339, source_uri
from handlers.aep.levels import Capture, JSONObject, Severity
from handlers.aep.registry import TYPES
from handlers.aep.validation import check_event, is_time
from tests.aep.payloads import payloads

IDENTITY: dict[str, Any] = {
    "id": "01KB",
    "time_ms": SEQ_ORIGIN_MS + 5,
    "source": "aep://h/agent/kimi-code/session/s",
    "agent": "kimi-code",
    "session": "s",
    "seq": 7,
}
ANYTHING = st.text(st.characters(codec=None), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(1 << 62, 1 << 90) | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANYTHING, inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Said:
    """A draft of an event."""

    type: str
    data: JSONObject = field(default_factory=dict)
    subject: str | None = None
    capture: Capture = Capture.METADATA
    severity: Severity = Severity.INFO


def finished(draft: Said, **more: Any) -> dict[str, Any]:
    event = json.loads(finish(draft, **{**IDENTITY, **more}))
    assert check_event(event) == []
    assert isinstance(event, dict)
    return event


def test_all_attributes_in_order() -> None:
    draft = Said("tool.requested", {"tool": {"name": "Bash"}}, "Bash", Capture.FULL, Severity.NOTICE)
    event = finished(draft, run="r", step="t", cause="c")
    assert " ".join(event) == (
        "aep id type subject time source agent session run step seq cause severity capture data"
    )
    assert event["time"] == "2026-01-01T00:00:00.005Z"
    assert event["seq"] == 7


def test_defaults_are_written_and_absent_attributes_left_out() -> None:
    event = finished(Said("run.finished"), run="", cause=None)
    assert event["severity"] == "info"
    assert event["capture"] == "metadata"
    assert event["data"] == {}
    assert not event.keys() & {"subject", "run", "step", "cause", "epoch"}


def test_nothing_but_the_envelope_at_none() -> None:
    assert "data" not in finished(Said("tool.requested", {}, capture=Capture.NONE))


@pytest.mark.parametrize(
    ("draft", "event_type"),
    [
        (Said("tool.requested"), "x.kimi-code.tool.requested"),
        (Said("tool.requested", {"tool": "Bash"}), "x.kimi-code.tool.requested"),
        (Said("session.ended", {"duration_ms": -5}), "x.kimi-code.session.ended"),
        (Said("progress.status", {"percent": float("nan")}), "x.kimi-code.progress.status"),
        (Said("Not Legal"), "x.kimi-code.not_legal.event"),
        (Said(""), "x.kimi-code.unknown.event"),
        (Said("x.acme.foo"), "x.kimi-code.x.acme.foo"),
        (Said("control.rejected", {"reason": "whim"}), "x.kimi-code.control.rejected"),
    ],
)
def test_what_would_be_invalid_degrades(draft: Said, event_type: str) -> None:
    assert finished(draft)["type"] == event_type


@pytest.mark.parametrize(
    ("event_type", "absent"),
    [
        ("agent.heartbeat", {"session", "seq", "run"}),
        ("control.pause", {"seq"}),
        ("attention.routed", {"seq"}),
    ],
)
def test_scopes(event_type: str, absent: set[str]) -> None:
    assert not finished(Said(event_type), run="r").keys() & absent


@pytest.mark.parametrize("mistake", [{"id": ""}, {"seq": -1}])
def test_our_own_mistakes_are_refused(mistake: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="id and a position"):
        finish(Said("run.finished"), **{**IDENTITY, **mistake})


@given(
    st.sampled_from(sorted(TYPES)) | ANYTHING,
    st.dictionaries(ANYTHING | st.sampled_from(["tool", "error", "kind", "prompt"]), JSON, max_size=4),
    *[ANYTHING] * 7,
)
def test_whatever_the_strings_hold(
    event_type: str,
    data: JSONObject,
    subject: str,
    source: str,
    agent: str,
    session: str,
    run: str,
    step: str,
    cause: str,
) -> None:
    draft = Said(event_type, data, subject)
    given_ = {"source": source, "agent": agent, "session": session, "run": run, "step": step, "cause": cause}
    text = finish(draft, **{**IDENTITY, **given_})
    event = orjson.loads(text)
    assert check_event(event) == []
    assert b"\n" not in text


@given(st.data(), st.sampled_from(sorted(TYPES)), st.integers(300, 3000))
def test_never_above_the_limit(data: st.DataObject, event_type: str, limit: int) -> None:
    payload = data.draw(payloads(event_type))
    payload["note"] = "x" * data.draw(st.integers(0, 5000))
    text = finish(
        Said(event_type, payload, "s" * data.draw(st.integers(0, 2000))), limit=limit + 2000, **IDENTITY
    )
    assert len(text) <= limit + 2000
    assert check_event(orjson.loads(text)) == []


def test_a_large_event_keeps_its_digests_and_loses_its_values() -> None:
    draft = Said(
        "tool.completed",
        {
            "tool": {"name": "Bash", "call_id": "c1"},
            "result_digest": "d" * 32,
            "result": {"text": "v" * 300_000},
            "result_redacted": "r" * 300_000,
            "status": "success",
        },
        capture=Capture.FULL,
    )
    assert finished(draft)["data"] == {
        "tool": {"name": "Bash", "call_id": "c1"},
        "result_digest": "d" * 32,
        "status": "success",
        "truncated": True,
    }


@pytest.mark.parametrize(
    "data",
    [
        {f"k{i}": "v" * 500 for i in range(5000)},
        {"a": "v" * 10**6},
        {"a" * 10**6: 1},
        {"a": [["v" * 300] * 300] * 30},
        {f"{i:x}" * 60: {f"{j:x}" * 60: "v" * 99 for j in range(99)} for i in range(99)},
    ],
)
def test_any_large_payload_fits(data: JSONObject) -> None:
    for event_type in ("x.kimi-code.session.thing", "tool.requested", "session.started"):
        event = finished(Said(event_type, {"tool": {"name": "n" * 10**5}, "args_digest": "d", **data}))
        assert len(orjson.dumps(event)) <= 256 * 1024
        assert event["data"]["truncated"] is True


def test_an_event_that_leaves_its_scope_to_fit_is_whole() -> None:
    # An agent's event has no session; what becomes of it when its payload no longer fits the schema has one.
    spec = {name: shape for name, shape in TYPES.items() if name.startswith("agent.") and shape.required}
    for event_type in spec:
        data: JSONObject = {name: "v" * 10**6 for name in TYPES[event_type].required}
        event = orjson.loads(finish(Said(event_type, data), **IDENTITY))
        assert check_event(event) == []
        if event["type"].startswith("x."):
            assert list(event)[:2] == ["aep", "id"]
            assert event["seq"] == IDENTITY["seq"]
            assert list(event).index("session") < list(event).index("seq") < list(event).index("severity")


def test_long_attributes_are_cut_and_stay_different() -> None:
    cut = [finished(Said("run.finished", subject="s" * 300_000 + end))["subject"] for end in "ab"]
    assert cut[0] != cut[1]
    assert all(len(subject) == 1024 - 33 + 33 for subject in cut)


@pytest.mark.parametrize("nesting", [100, 300, 900])
def test_deep_data(nesting: int) -> None:
    data: JSONObject = {}
    for _ in range(nesting):
        data = {"a": [data]}
    finished(Said("x.kimi-code.session.deep", data))


@given(ANYTHING, ANYTHING, ANYTHING)
def test_source_names_its_parts(emitter: str, agent: str, session: str) -> None:
    uri = source_uri(emitter, agent, session)
    assert uri.isascii()
    assert urlsplit(uri).scheme == "aep"
    parts = uri.removeprefix("aep://").split("/")
    assert parts[1::2] == ["agent", "session"]
    for given_, part in zip((emitter, agent, session), parts[::2], strict=True):
        clean = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in given_)
        assert unquote(part) == (clean or "unknown")
        assert part not in (".", "..")


@pytest.mark.parametrize(
    ("last", "now_ms", "expected"),
    [
        (-1, 0, 0),
        (-1, SEQ_ORIGIN_MS, 0),
        (-1, SEQ_ORIGIN_MS + 9, 9),
        (9, SEQ_ORIGIN_MS + 9, 10),
        (9, SEQ_ORIGIN_MS - 5, 10),
        (9, SEQ_ORIGIN_MS + 50, 50),
    ],
)
def test_position(last: int, now_ms: int, expected: int) -> None:
    assert position(last, now_ms) == expected


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (SEQ_ORIGIN_MS, "2026-01-01T00:00:00.000Z"),
        (-5, "1970-01-01T00:00:00.000Z"),
        (10**18, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_rfc3339(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


@given(st.integers())
def test_any_time_is_a_time(ms: int) -> None:
    assert is_time(rfc3339(ms))
