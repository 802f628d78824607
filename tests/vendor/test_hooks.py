"""What the real binary's hooks deliver through our shim, seen by a recorder in the place of the service.

Hooks that the vendor waits for arrive in order; the others may overtake (kimi-code 2.1.0 hook runner).
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.model_server import ModelServer

from .kimi import Kimi, Printed
from .recorder import Recorder
from .service import register
from .waiting import until
from .web import Web

WAITED = ("SessionStart", "UserPromptSubmit", "PreToolUse", "SubagentStart", "Stop")

# scenario → what arrives beyond SessionStart and UserPromptSubmit, turns of all agents
SCENARIOS = {
    "plain": (["Stop"], 1),
    "bash_ok": (["PreToolUse", "PostToolUse", "Stop"], 1),
    "bash_fail": (["PreToolUse", "PostToolUseFailure", "Stop"], 1),
    "several": (["PreToolUse"] * 3 + ["PostToolUse"] * 2 + ["PostToolUseFailure", "Stop"], 1),
    "unknown_tool": (["PostToolUseFailure", "Stop"], 1),
    "subagent": (["PreToolUse", "SubagentStart", "Stop", "SubagentStop", "PostToolUse", "Stop"], 2),
    "err500": (["StopFailure"], 1),
    "err401": (["StopFailure"], 1),
}


def expected(kimi: Kimi, scenario: str) -> Counter[str]:
    more, turns = SCENARIOS[scenario]
    events = ["SessionStart", "UserPromptSubmit", *more]
    return Counter([*events, *(["TurnStarted"] * turns if kimi.v2 else ["SessionEnd"])])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_hook_of_a_print_run_arrives_once(
    kimi: Kimi, recorder: Recorder, model: ModelServer, scenario: str
) -> None:
    register(kimi, recorder.hook_url)
    printed = kimi.run_print(f"MOCK:{scenario}")
    wanted = expected(kimi, scenario)
    assert printed.code == (1 if scenario.startswith("err") else 0), printed.stderr
    recorder.wait(*wanted.elements())
    assert Counter(recorder.events) == wanted
    main = [e for e in recorder.events if e in WAITED]
    assert main[:2] == ["SessionStart", "UserPromptSubmit"]
    assert main[-1] in ("Stop", "UserPromptSubmit", "PreToolUse")
    sessions = {p.payload["session_id"] for p in recorder.posted}
    assert len(sessions) == 1
    assert printed.session in (None, *sessions)
    if scenario == "unknown_tool":
        assert recorder.of("PostToolUseFailure")[0]["tool_name"] == "NoSuchTool"
    untouched(kimi, model, printed)


def untouched(kimi: Kimi, model: ModelServer, printed: Printed) -> None:
    """Nothing of ours reached the model or the user."""
    for request in model.requests:
        assert not [text for text in request.texts("user") if "hook_result" in text]
    for text in (printed.stdout, printed.stderr):
        assert "kimi_hook" not in text
        assert "hook_result" not in text
    assert "Ignored invalid config" not in printed.stderr


def test_a_resumed_session_keeps_its_id(kimi: Kimi, recorder: Recorder) -> None:
    register(kimi, recorder.hook_url)
    first = kimi.run_print("MOCK:plain")
    second = kimi.run_print("MOCK:bash_ok", resume=first.session)
    assert second.code == 0, second.stderr
    assert recorder.wait("Stop", "Stop", "PostToolUse")
    assert [p["source"] for p in recorder.of("SessionStart")] == ["startup", "resume"]
    assert {p.payload["session_id"] for p in recorder.posted} == {first.session} == {second.session}


def test_a_dead_service_is_not_noticed(kimi: Kimi, model: ModelServer) -> None:
    """Nothing listens: the run does what it always does, and no hook costs a visible moment."""
    register(kimi, "http://127.0.0.1:9/hook")
    printed = kimi.run_print("MOCK:bash_ok")
    assert printed.code == 0
    assert "The command printed mock-ok." in printed.stdout
    untouched(kimi, model, printed)


def test_a_deny_and_a_message_reach_the_model(kimi: Kimi, recorder: Recorder, model: ModelServer) -> None:
    """The two replies that the vendor honours, relayed by the shim."""
    deny = {"permissionDecision": "deny", "permissionDecisionReason": "use the staging registry"}

    def answer(payload: dict[str, object]) -> dict[str, object]:
        if payload["hook_event_name"] == "PreToolUse":
            return {"hookSpecificOutput": deny}
        return {"message": "think of the tests"} if payload["hook_event_name"] == "UserPromptSubmit" else {}

    recorder.answer = answer
    register(kimi, recorder.hook_url)
    assert kimi.run_print("MOCK:bash_ok").code == 0
    assert recorder.wait("PostToolUseFailure", "Stop")
    first, second = model.of("bash_ok")
    assert "".join(first.texts("user")).count("think of the tests") == 1
    assert "use the staging registry" in second.texts("tool")[0]
    assert "mock-ok" not in second.texts("tool")[0]


ROUNDS = 20


def test_the_last_tool_call_of_a_print_run_always_arrives(kimi_newest: Kimi, recorder: Recorder) -> None:
    """The vendor kills these hooks milliseconds after the turn ends; two runs at a time, an instant model."""
    register(kimi_newest, recorder.hook_url)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: kimi_newest.run_print("MOCK:last_tool"), range(ROUNDS)))
    assert [run.code for run in runs] == [0] * ROUNDS
    recorder.wait(*["PostToolUse"] * ROUNDS)
    assert {p["session_id"] for p in recorder.of("PostToolUse")} == {run.session for run in runs}
    assert len(recorder.of("PostToolUse")) == ROUNDS


def test_the_last_tool_call_of_a_web_turn_always_arrives(kimi_newest: Kimi, recorder: Recorder) -> None:
    register(kimi_newest, recorder.hook_url)
    with Web(kimi_newest) as web:
        session = web.create()
        for _ in range(ROUNDS):
            web.prompt(session, "MOCK:last_tool", permission_mode="yolo")
            web.idle(session)
    until(lambda: len(recorder.of("PostToolUse")) >= ROUNDS, "the last PostToolUse", 10)
    calls = [p["tool_call_id"] for p in recorder.of("PostToolUse")]
    assert len(calls) == len(set(calls)) == ROUNDS
