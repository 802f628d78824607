"""What stays of a payload at each level, for an emitter and for a hop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.capture import Posture, declared_capture, downlevel, gate, gate_values
from handlers.aep.honesty import check_capture
from handlers.aep.levels import Capture
from handlers.aep.registry import TYPES, scope_of
from handlers.aep.validation import check_payload
from tests.aep.payloads import payloads

NONE, METADATA, REDACTED, FULL = Capture

COMPLETED: dict[str, Any] = {
    "tool": {"name": "Bash", "call_id": "c1"},
    "result_digest": "d",
    "result_redacted": "r",
    "result": "f",
    "kind": "shell",
}


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        (NONE, set()),
        (METADATA, {"tool", "result_digest", "kind"}),
        (REDACTED, {"tool", "result_digest", "kind", "result_redacted"}),
        (FULL, {"tool", "result_digest", "kind", "result_redacted", "result"}),
    ],
)
def test_gate_by_level(level: Capture, kept: set[str]) -> None:
    assert set(gate("tool.completed", COMPLETED, level)) == kept


def test_gate_reaches_into_objects_and_lists() -> None:
    failed = {"tool": {"name": "x"}, "error": {"type": "E", "message": "text"}}
    assert gate("tool.failed", failed, METADATA)["error"] == {"type": "E"}
    returned = {"documents": [{"id": "1", "content": "x", "content_redacted": "y"}]}
    assert gate("resource.retrieval.returned", returned, METADATA) == {"documents": [{"id": "1"}]}
    assert gate("resource.retrieval.returned", returned, REDACTED) == {
        "documents": [{"id": "1", "content_redacted": "y"}]
    }


def test_starred_fields_are_made_of_structure_at_metadata() -> None:
    asked = {
        "kind": "form",
        "prompt": "words",
        "options": [{"id": "a", "label": "words"}, {"id": 2, "label": "words"}, "words"],
        "fields": [
            {"id": "f", "type": "select", "label": "words", "choices": [{"id": "1", "label": "words"}]},
        ],
    }
    assert gate("attention.requested", asked, METADATA, agent="kimi-code", subject="Bash") == {
        "kind": "form",
        "prompt": "kimi-code requests form: Bash",
        "options": [{"id": "a", "label": "a"}, {"id": 2, "label": "2"}],
        "fields": [{"id": "f", "type": "select", "label": "f", "choices": [{"id": "1", "label": "1"}]}],
    }
    assert gate("attention.requested", {"kind": "form", "prompt": "words"}, METADATA)["prompt"] == (
        "kimi-code requests form"
    )
    assert gate("attention.requested", asked, REDACTED) == asked
    answered: dict[str, Any] = {"answer": {"text": "t", "values": {"a": "t", "b": 1, "c": True, "d": ["1"]}}}
    assert gate("attention.answered", answered, METADATA) == {"answer": {"values": {"b": 1, "c": True}}}


def test_gate_leaves_its_input_alone() -> None:
    before = {"kind": "input", "prompt": "words", "options": [{"id": "a", "label": "words"}]}
    gate("attention.requested", before, METADATA)
    assert before["prompt"] == "words"
    assert before["options"] == [{"id": "a", "label": "words"}]


def test_form_answers() -> None:
    fields: Any = [
        {"id": "s", "type": "string"},
        {"id": "n", "type": "number"},
        {"id": "c", "type": "select", "choices": [{"id": "1"}]},
        "no field",
    ]
    values: Any = {"s": "t", "n": 1, "c": "1", "x": 1}
    assert gate_values(fields, values, METADATA) == {"n": 1, "c": "1"}
    assert gate_values(fields, values, REDACTED) == {"s": "t", "n": 1, "c": "1"}
    assert gate_values(fields, {"c": ["1", "2"], "n": "text"}, METADATA) == {}
    assert gate_values("no list", values, FULL) == {}


def event(capture: str | None, event_type: str = "tool.completed", **data: Any) -> dict[str, Any]:
    made = {"type": event_type, "agent": "a", "subject": "Bash", "data": {**COMPLETED, **data}}
    return made if capture is None else {**made, "capture": capture}


def test_a_hop_passes_what_is_low_enough() -> None:
    for declared, ceiling in [("none", NONE), ("metadata", FULL), (None, METADATA), ("redacted", REDACTED)]:
        same = event(declared)
        assert downlevel(same, ceiling) is same


def test_a_hop_never_mints_redacted() -> None:
    passed = downlevel(event("full"), REDACTED)
    assert passed["capture"] == "metadata"
    assert set(passed["data"]) == {"tool", "result_digest", "kind"}  # type: ignore[arg-type]


def test_a_hop_drops_what_it_does_not_know() -> None:
    assert "data" not in downlevel(event("redacted", "x.acme.a.b"), METADATA)
    assert "data" not in downlevel(event("redacted"), NONE)
    assert "data" not in downlevel({**event("full"), "type": 5}, METADATA)


def test_a_hop_drops_content_that_our_mappings_add() -> None:
    passed = downlevel(event("redacted", "delegation.subagent.started", prompt="words"), METADATA)
    assert "prompt" not in passed["data"]  # type: ignore[operator]


@pytest.mark.parametrize("word", ["secret", "", 5, None, []])
def test_an_unknown_level_counts_as_full(word: Any) -> None:
    assert declared_capture({"capture": word}) is FULL
    assert downlevel({**event(None), "capture": word}, METADATA)["capture"] == "metadata"


def test_posture() -> None:
    posture = Posture()
    assert posture.level("tool.requested") is METADATA
    assert posture.level("attention.requested") is REDACTED
    assert Posture(capture=FULL, attention=NONE).level("attention.answered") is NONE


@given(st.data(), st.sampled_from(sorted(TYPES)), st.sampled_from(list(Capture)))
def test_what_is_gated_is_valid_and_honest(data: st.DataObject, event_type: str, level: Capture) -> None:
    payload = data.draw(payloads(event_type))
    kept = gate(event_type, payload, level, agent="a", subject="s")
    assert level is NONE or not check_payload(event_type, kept)
    said = {"type": event_type, "agent": "a", "subject": "s", "capture": level.value, "data": kept}
    assert not check_capture(said)


@given(st.data(), st.sampled_from(sorted(TYPES)), *[st.sampled_from(list(Capture))] * 2)
def test_what_a_hop_passes_is_valid_and_honest(
    data: st.DataObject, event_type: str, declared: Capture, ceiling: Capture
) -> None:
    payload = gate(event_type, data.draw(payloads(event_type)), declared, agent="a", subject="s")
    said = {"type": event_type, "agent": "a", "subject": "s", "capture": declared.value, "data": payload}
    passed = downlevel(said, ceiling)
    level = declared_capture(passed)
    assert ceiling.allows(level)
    assert declared.allows(level)
    assert not check_capture(passed)
    assert "data" not in passed or level is NONE or not check_payload(event_type, passed["data"])
    assert downlevel(passed, ceiling) == passed
    assert scope_of(event_type) in ("session", "agent", "command")
