"""What a moment says at each capture level, on every channel (AEP-0002 §5.1, AEP-0003 §9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.mapping.acp import map_moment
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from handlers.mapping.web import map_frame
from tests.mapping.payloads import CONTENT, FRAMES, HOOKS, MOMENTS, PLACE, SECRET
from tests.mapping.support import LEVELS, assert_sound, posture, said

Case = tuple[str, Callable[[Posture], Moment | None]]


def _web(payload: dict[str, Any], mode: Any) -> Callable[[Posture], Moment | None]:
    return lambda at: map_frame(payload, mode, at)


def _hook(payload: dict[str, Any]) -> Callable[[Posture], Moment | None]:
    return lambda at: map_hook(payload, at)


def _acp(moment: tuple[str, str, Any]) -> Callable[[Posture], Moment | None]:
    kind: Any = moment[0]
    return lambda at: map_moment(kind, moment[1], moment[2], at)


CASES: list[Case] = [
    *((f"hook {name}", _hook(payload)) for name, payload in HOOKS.items()),
    *((f"companion {name}", _web(payload, "companion")) for name, payload in FRAMES.items()),
    *((f"primary {name}", _web(payload, "primary")) for name, payload in FRAMES.items()),
    *((f"acp {name}", _acp(moment)) for name, moment in MOMENTS.items()),
]
every_case = pytest.mark.parametrize("make", [make for _, make in CASES], ids=[name for name, _ in CASES])


def mapped(make: Callable[[Posture], Moment | None], at: Posture) -> Moment:
    moment = make(at)
    assert moment is not None
    return moment


@every_case
@pytest.mark.parametrize("level", LEVELS)
def test_sound_at_every_level(make: Callable[[Posture], Moment | None], level: Capture) -> None:
    assert_sound(mapped(make, posture(level)), level)
    assert_sound(mapped(make, posture(level, acp_deltas=True)), level)


@every_case
@pytest.mark.parametrize("level", [Capture.NONE, Capture.METADATA])
def test_no_content_below_redacted(make: Callable[[Posture], Moment | None], level: Capture) -> None:
    moment = mapped(make, posture(level, acp_deltas=True))
    assert CONTENT not in json.dumps(said(moment))


@every_case
def test_no_secret_below_full(make: Callable[[Posture], Moment | None]) -> None:
    assert SECRET not in json.dumps(said(mapped(make, posture(Capture.REDACTED, acp_deltas=True))))


@every_case
@pytest.mark.parametrize("level", LEVELS)
def test_no_facts_with_content(make: Callable[[Posture], Moment | None], level: Capture) -> None:
    assert CONTENT not in json.dumps(dict(mapped(make, posture(level)).facts))


@every_case
@pytest.mark.parametrize("level", LEVELS)
def test_the_working_directory_never_rides(make: Callable[[Posture], Moment | None], level: Capture) -> None:
    assert PLACE not in json.dumps(said(mapped(make, posture(level, acp_deltas=True))))


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_companion_says_nothing_at_any_level(name: str) -> None:
    moment = map_frame(FRAMES[name], "companion", posture(Capture.FULL))
    assert moment is not None
    assert moment.drafts == (moment.fallback,)
    assert (moment.fallback.data, moment.partial) == ({}, None)


REDACTED_TEXT = f"{CONTENT} [REDACTED:secret]"
FULL_TEXT = f"{CONTENT} {SECRET}"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("SessionStart", "label"),
        ("UserPromptSubmit", "prompt"),
        ("UserPromptSubmit_steer", "prompt"),
        ("StopFailure", "error.message"),
        ("PostToolUseFailure", "error.message"),
        ("PermissionRequest", "prompt"),
        ("PermissionResult_plan", "label"),
        ("PermissionResult_rejected", "answer.text"),
        ("SubagentStart", "prompt"),
        ("SubagentStop", "response"),
        ("Notification", "message"),
        ("TurnStarted", "prompt"),
        ("UserPromptQueued", "prompt"),
        ("TaskStarted", "description"),
    ],
)
def test_free_text_of_hooks_is_redacted_then_verbatim(name: str, path: str) -> None:
    assert REDACTED_TEXT in _at(name, path, Capture.REDACTED)
    assert FULL_TEXT in _at(name, path, Capture.FULL)


def _at(name: str, path: str, level: Capture) -> str:
    value: Any = map_hook(HOOKS[name], posture(level)).drafts[0].data
    for key in path.split("."):
        value = value[key]
    assert isinstance(value, str)
    return value


@pytest.mark.parametrize(
    ("name", "key", "digest"),
    [("PreToolUse", "args", "args_digest"), ("PostToolUse", "result", "result_digest")],
)
def test_values_of_tools_at_full_only_and_digests_always(name: str, key: str, digest: str) -> None:
    at = {level: map_hook(HOOKS[name], posture(level)).drafts[0].data for level in LEVELS}
    assert [key in at[level] for level in LEVELS] == [False, False, False, True]
    assert len({at[level][digest] for level in LEVELS if level is not Capture.NONE}) == 1


def test_attention_has_its_own_ceiling() -> None:
    at = Posture(capture=Capture.METADATA, attention=Capture.REDACTED)
    assert map_hook(HOOKS["PermissionRequest"], at).drafts[0].capture is Capture.REDACTED
    assert map_hook(HOOKS["PreToolUse"], at).drafts[0].capture is Capture.METADATA


def test_a_prompt_at_metadata_is_made_of_structure() -> None:
    draft = map_hook(HOOKS["PermissionRequest"], posture(Capture.METADATA)).drafts[0]
    assert draft.data["prompt"] == "kimi-code requests permission: Bash"


def test_labels_of_a_form_at_metadata_are_places() -> None:
    moment = map_frame(FRAMES["question_requested"], "primary", posture(Capture.METADATA))
    assert moment is not None
    assert moment.drafts[0].data["fields"] == [
        {
            "id": "q_0",
            "type": "select",
            "label": "1",
            "choices": [{"id": "opt_0_0", "label": "1"}, {"id": "opt_0_1", "label": "2"}],
            "multi": True,
            "other": True,
        },
        {"id": "q_1", "type": "select", "label": "2", "choices": [{"id": "opt_1_0", "label": "1"}]},
    ]


def test_a_text_beyond_the_limit_is_left_out_and_marked() -> None:
    data = (
        map_hook({**HOOKS["SubagentStop"], "response": "x" * 300_000}, posture(Capture.REDACTED))
        .drafts[0]
        .data
    )
    assert data == {"truncated": True}
