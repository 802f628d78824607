"""The invariants of DESIGN §4, over stories no vendor ever told and over real ones torn to pieces."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.aep.streams import StreamChecker
from handlers.aep.ulid import Mint
from handlers.lifecycle import clock
from handlers.lifecycle.bounds import LIMIT
from handlers.lifecycle.reducer import Emitted, Input, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from tests.lifecycle.invariants import check
from tests.lifecycle.shelf import START_MS, finished
from tests.lifecycle.support import ENGINES, payload, types

DAY_MS = 24 * 3_600_000
POSTURE = Posture(capture=Capture.REDACTED)

calls = st.sampled_from(["c0", "c1", "c2", "c3"])
tools = st.sampled_from(["Bash", "Bash", "Agent", "AgentSwarm"])
turns = st.integers(0, 4)
agents = st.sampled_from([None, "main", "agent-1"])
tasks = st.sampled_from(["agent-a", "agent-b", "bash-c"])


def _made(event: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"event": st.just(event), **fields})


call = {"tool_name": tools, "tool_call_id": calls}
asking = {**call, "turn_id": turns, "agent_id": agents, "id": st.sampled_from([None, "approval_1"])}
hooks = st.one_of(
    _made("SessionStart", source=st.sampled_from(["startup", "resume"])),
    _made("SessionEnd", reason=st.just("exit")),
    _made("UserPromptSubmit"),
    _made("UserPromptSubmit", is_steer=st.just(True)),
    _made("UserPromptQueued", queue_length=st.just(1)),
    _made("TurnStarted", turn_id=turns, origin_kind=st.sampled_from(["user", "task", "cron_job"])),
    _made("TurnStarted", turn_id=turns, origin_name=st.just("subagent")),
    _made("Stop"),
    _made("Stop"),
    _made("StopFailure", error_type=st.just("APIStatusError")),
    _made("Interrupt", turn_id=turns, reason=st.just("cancelled")),
    _made("PreToolUse", **call, tool_input=st.sampled_from([{}, {"run_in_background": True}])),
    _made("PostToolUse", **call, tool_output=st.just("ok")),
    _made("PostToolUseFailure", **call, error=st.just({"code": "internal", "message": "no"})),
    _made("PermissionRequest", **asking),
    _made(
        "PermissionResult",
        **asking,
        decision=st.sampled_from(["approved", "rejected", "rejected", "cancelled", "error"]),
    ),
    _made("SubagentStart", agent_name=st.just("coder")),
    _made("SubagentStop", agent_name=st.just("coder")),
    _made("TaskStarted", task_id=tasks, kind=st.sampled_from(["agent", "process"])),
    _made(
        "Notification",
        source_id=tasks,
        notification_type=st.sampled_from(["task.completed", "task.failed", "task.killed"]),
    ),
    _made("SessionHeartbeat"),
    _made("SomethingNew"),
)
pauses = st.sampled_from([-20, 0, 1, 20, 20, 200, 900, 2_100, 61_000])
steps = st.lists(st.tuples(st.one_of(hooks, st.none()), pauses), min_size=1, max_size=60)
engines = st.sampled_from(list(ENGINES))


def _inputs(engine: str, story: list[tuple[dict[str, Any] | None, int]]) -> list[Input]:
    made, at = [], START_MS
    for number, (fields, pause) in enumerate(story):
        at += pause
        moment: Moment | Tick = Tick()
        if fields is not None:
            given = {name: value for name, value in fields.items() if value is not None}
            moment = map_hook(payload(given.pop("event"), engine=engine, **given), POSTURE)
        made.append(Input(moment, at, Mint(at, number.to_bytes(8, "big") + b"\0\0")))
    return made


def _play(inputs: list[Input], cuts: list[int], *, store: bool) -> tuple[list[Emitted], SessionState]:
    """Reduce in batches cut at `cuts`, through storage or not."""
    state: SessionState | None = None
    told: list[Emitted] = []
    bounds = sorted({0, len(inputs), *(cut % (len(inputs) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(bounds):
        before = None if state is None else state.encode()
        reduction = reduce(state, inputs[begin:end], START_MS)
        assert len(reduction.replies) == end - begin
        assert state is None or state.encode() == before, "what is given is not changed"
        state, stored = reduction.state, reduction.state.encode()
        told += reduction.events
        assert len(stored) <= LIMIT
        if store:
            state = SessionState.decode(stored)
            assert state.encode() == stored
    assert state is not None
    return told, state


def _drain(inputs: list[Input]) -> list[Input]:
    """Ticks until nobody can be waiting."""
    last = max(given.at_ms for given in inputs)
    return [
        Input(Tick(), last + ms, Mint(last + ms, b"\xff" + bytes(9)))
        for ms in (3_000, 61_000, 64_000, DAY_MS, 2 * DAY_MS)
    ]


def _moments(inputs: list[Input]) -> int:
    return sum(isinstance(given.moment, Moment) for given in inputs)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(engine=engines, story=steps)
def test_any_story_keeps_every_invariant(engine: str, story: list[Any]) -> None:
    inputs = _inputs(engine, story)
    told, state = _play(inputs + _drain(inputs), [], store=False)
    assert not check(told), "every request is closed in the end"
    assert state.due_ms is None, "nothing waits for ever"
    assert len(told) >= _moments(inputs), "nothing observed is dropped"


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(engine=engines, story=steps, cuts=st.lists(st.integers(0, 70), max_size=8))
def test_batches_and_storage_change_nothing(engine: str, story: list[Any], cuts: list[int]) -> None:
    inputs = _inputs(engine, story)
    told, state = _play(inputs, [], store=False)
    again, other = _play(inputs, cuts, store=True)
    assert told == again
    assert state.encode() == other.encode()


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(engine=engines, story=steps)
def test_what_is_due_is_told_the_same_by_a_tick_and_by_the_next_event(engine: str, story: list[Any]) -> None:
    inputs = _inputs(engine, story)
    plain, _ = _play(inputs, [], store=False)
    state: SessionState | None = None
    told: list[Emitted] = []
    for given_ in inputs:
        while state is not None and state.due_ms is not None and state.due_ms <= given_.at_ms:
            tick = reduce(state, [Input(Tick(), state.due_ms, Mint(0, bytes(10)))], START_MS)
            state = tick.state
            told += tick.events
        reduction = reduce(state, [given_], START_MS)
        state = reduction.state
        told += reduction.events
    assert types(told) == types(plain)
    assert [event.time_ms for event in told] == [event.time_ms for event in plain]


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(engine=engines, story=steps)
def test_a_state_that_is_given_away_gives_the_same(engine: str, story: list[Any]) -> None:
    kept: SessionState | None = None
    given_away: SessionState | None = None
    for step in _inputs(engine, story):
        plain = reduce(kept, [step], START_MS)
        own = reduce(given_away, [step], START_MS, own=True)
        assert own.events == plain.events
        assert own.replies == plain.replies
        assert given_away is None or own.state is given_away
        kept, given_away = plain.state, own.state
        assert kept.encode() == given_away.encode()
        dues = [due for part in clock.PARTS if (due := part.due(kept)) is not None]
        assert clock.due(kept) == min(dues, default=None), "what waits is seen at a glance"


# What one prompt with tools, a question and subagents looks like; `+` marks what is sent without waiting.
_CALL = [
    ("PreToolUse", {"tool_name": "Bash", "tool_call_id": "{c}", "tool_input": {}}),
    ("+PermissionRequest", {"tool_name": "Bash", "tool_call_id": "{c}", "id": "approval_{c}"}),
    (
        "+PermissionResult",
        {"tool_name": "Bash", "tool_call_id": "{c}", "id": "approval_{c}", "decision": "{d}"},
    ),
    ("+{p}", {"tool_name": "Bash", "tool_call_id": "{c}", "error": {"message": "no"}, "tool_output": "ok"}),
]
_CHILD = [
    ("PreToolUse", {"tool_name": "Agent", "tool_call_id": "{c}", "tool_input": {}}),
    ("SubagentStart", {"agent_name": "coder"}),
    ("Stop", {}),
    ("+SubagentStop", {"agent_name": "coder"}),
    ("+PostToolUse", {"tool_name": "Agent", "tool_call_id": "{c}", "tool_output": "ok"}),
]


@st.composite
def _torn(draw: st.DrawFn) -> tuple[str, list[tuple[dict[str, Any] | None, int]]]:
    """A session of a few prompts, with hooks lost, sent twice and delayed."""
    engine = draw(engines)
    whole: list[tuple[str, dict[str, Any]]] = [("SessionStart", {"source": "startup"})]
    for turn in range(draw(st.integers(1, 3))):
        whole.append(("UserPromptSubmit", {}))
        if engine == "new":
            whole.append(("+TurnStarted", {"turn_id": turn, "origin_kind": "user"}))
        for number in range(draw(st.integers(0, 3))):
            part = draw(st.sampled_from([_CALL, _CALL, _CHILD]))
            decision = draw(st.sampled_from(["approved", "rejected", "cancelled"]))
            words = {
                "c": f"call_{turn}_{number}" if draw(st.booleans()) else f"call_{number}",
                "d": decision,
                "p": "PostToolUse" if decision == "approved" else "PostToolUseFailure",
            }
            for name, fields in part:
                filled = {k: v.format(**words) if isinstance(v, str) else v for k, v in fields.items()}
                whole.append((name.format(**words), filled))
        whole.append(draw(st.sampled_from([("Stop", {}), ("+StopFailure", {}), ("+Interrupt", {})])))
    whole.append(("SessionEnd", {"reason": "exit"}))
    timed = []
    for number, (name, fields) in enumerate(whole):
        fate = draw(st.sampled_from(["as it is"] * 8 + ["lost", "twice"]))
        for _ in range({"lost": 0, "twice": 2}.get(fate, 1)):
            late = draw(st.integers(0, 60)) if name.startswith("+") else 0
            timed.append((number * 20 + late, {"event": name.removeprefix("+"), **fields}))
    timed.sort(key=lambda item: item[0])
    story, last = [], 0
    for at, fields in timed:
        story.append((fields, at - last))
        last = at
    return engine, story


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(torn=_torn())
def test_a_torn_session_keeps_every_invariant(torn: tuple[str, list[Any]]) -> None:
    engine, story = torn
    if not story:
        return
    inputs = _inputs(engine, story)
    told, state = _play(inputs + _drain(inputs), [], store=True)
    assert not check(told)
    assert state.due_ms is None
    assert len(told) >= _moments(inputs)
    checker = StreamChecker()
    for event in told:
        assert checker.check(finished(event)) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(story=steps)
def test_the_unknown_bucket_has_no_lifecycle(story: list[Any]) -> None:
    named = [(None if f is None else {**f, "session_id": ""}, pause) for f, pause in story]
    inputs = _inputs("new", named)
    told, state = _play(inputs, [], store=True)
    assert len(told) == _moments(inputs)
    assert all(event.run is None and event.cause is None for event in told)
    claims = [
        kind for kind in types(told) if kind.startswith(("run.", "attention.")) or kind == "session.ended"
    ]
    assert not claims
    assert state.due_ms is None


@pytest.mark.parametrize(("size", "rounds"), [(3, 1_000), (64, 1_000), (10_000, 250)])
def test_floods_stay_within_bounds(size: int, rounds: int) -> None:
    state: SessionState | None = None
    told: list[Emitted] = []
    largest = 0
    for number in range(rounds):
        new, old = f"{number}".rjust(size, "c"), f"{number % 7}".rjust(size, "r")
        noise = "\0" * size
        made = [
            payload("PreToolUse", tool_name="Agent", tool_call_id=new, tool_input={}),
            payload("TaskStarted", kind="agent", task_id=f"agent-{number}"),
            payload("PermissionRequest", tool_name="Bash", tool_call_id=new, turn_id=noise),
            payload("PreToolUse", tool_name="T" * size, tool_call_id=new + "x"),
            payload("PermissionResult", tool_call_id=old, decision="rejected", feedback=noise),
            payload("PostToolUseFailure", tool_name=noise, tool_call_id=new, error={"message": noise}),
            payload("StopFailure", error_type="E", error_message=noise),
            payload("UserPromptSubmit") if number % 100 == 0 else payload("SubagentStart"),
        ]
        at = START_MS + number
        mints = (Mint(at, bytes([i]) + bytes(9)) for i in range(len(made)))
        inputs = [Input(map_hook(one, POSTURE), at, mint) for one, mint in zip(made, mints, strict=True)]
        reduction = reduce(state, inputs, START_MS)
        state = reduction.state
        told += reduction.events
        largest = max(largest, len(state.encode()))
    assert 20_000 < largest <= LIMIT
    check(told)
