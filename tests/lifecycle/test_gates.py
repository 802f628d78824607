"""The whole life of gates and instructions, by examples and against a model under any timing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture, JSONObject
from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import CALLS, GATES, LIMIT, QUEUE, REQUESTS
from handlers.lifecycle.commands import Answer, Command, Instruct, Nack
from handlers.lifecycle.gates import LATE_MS, Close, Hold, Opened
from handlers.lifecycle.instructions import EXPIRY_MS, Deliver, GiveBack
from handlers.lifecycle.reducer import Emitted, Happening, Input, Reduction, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.mapping.gates import gate_request
from handlers.mapping.hooks import map_hook
from tests.lifecycle.invariants import check
from tests.lifecycle.support import START_MS, payload, types

POSTURE = Posture(capture=Capture.REDACTED)
WINDOW_MS = 5_000


@dataclass
class Gate:
    """What the outside knows of one held hook."""

    ticket: str
    opened: Opened
    call: str
    until: int
    accepted: str | None = None  # the option that was acknowledged
    ended: str | None = None  # how the holder was told that it ended


@dataclass
class Stage:
    """A session and everything around it that a test moves."""

    state: bytes | None = None
    at: int = START_MS
    events: list[Emitted] = field(default_factory=list)
    commands: dict[str, Happening] = field(default_factory=dict)
    acks: list[tuple[str, str]] = field(default_factory=list)
    serial: int = 0

    def feed(self, *given: Happening) -> Reduction:
        inputs = []
        for happening in given:
            self.serial += 1
            inputs.append(Input(happening, self.at, Mint(self.at, self.serial.to_bytes(8, "big") + b"\0\0")))
        before = None if self.state is None else SessionState.decode(self.state)
        reduction = reduce(before, inputs, self.at)
        self.state = reduction.state.encode()
        assert len(self.state) <= LIMIT
        self.events += reduction.events
        self.acks += reduction.acks
        return reduction

    @property
    def now(self) -> SessionState:
        assert self.state is not None
        return SessionState.decode(self.state)

    def hook(self, event: str, **fields: Any) -> JSONObject:
        return self.feed(map_hook(payload(event, **fields), POSTURE)).replies[0]

    def hold(self, call: str, tool: str = "Bash", window: int = WINDOW_MS) -> Gate | None:
        fields: dict[str, Any] = {"tool_name": tool, "tool_call_id": call, "tool_input": {"command": "make"}}
        made = payload("PreToolUse", **fields)
        ticket, until = f"p{self.serial % 2}.{self.serial}", self.at + window
        request = gate_request(made, POSTURE, until)
        reply = self.feed(Hold(map_hook(made, POSTURE), request, ticket, until)).replies[0]
        if not reply:
            return None
        run = reply["run"]
        opened = Opened(str(reply["gate"]), self.at, run if isinstance(run, str) else None, False)
        return Gate(ticket, opened, call, until)

    def command(self, act: Answer | Instruct | Nack, name: str | None = None) -> tuple[str, JSONObject]:
        identity = f"cmd{self.serial}"
        made = Command(identity, name or identity, act, by="ann", level=Capture.REDACTED)
        self.commands[identity] = made
        return identity, self.feed(made).replies[0]

    def answer(self, gate: Gate, option: str, *, words: bool = False) -> JSONObject:
        return self.command(Answer(gate.opened.id, option, words))[1]

    def close(self, gate: Gate, why: Any, text: str | None = None) -> Any:
        return self.feed(Close(gate.ticket, why, gate.opened, text)).replies[0]["closed"]

    def of(self, gate: Gate) -> list[str]:
        """The types of everything about a request."""
        return [
            event.draft.type
            for event in self.events
            if event.draft.subject == gate.opened.id or event.id == gate.opened.id
        ]


def _one(stage: Stage, call: str = "c1") -> Gate:
    gate = stage.hold(call)
    assert gate is not None
    return gate


def test_decided_is_not_answered() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    gate = _one(stage)
    assert stage.answer(gate, "deny", words=True)["accepted"] is True
    assert stage.of(gate) == ["attention.requested"]
    assert stage.close(gate, "apply", "no") == "deny"
    assert stage.of(gate) == ["attention.requested", "attention.answered", "attention.resolved"]
    assert types(stage.events)[-4:] == [
        "control.accepted",
        "attention.answered",
        "attention.resolved",
        "tool.denied",
    ]
    last = stage.events[-3:]
    command = next(iter(stage.commands))
    requested = next(event for event in stage.events if event.draft.type == "tool.requested")
    assert [event.cause for event in last] == [command, command, requested.id]
    assert last[0].draft.data["answer"] == {"option": "deny", "text": "no"}
    assert {event.run for event in last} == {requested.run}


def test_the_second_answer_is_refused_and_told_why() -> None:
    stage = Stage()
    gate = _one(stage)
    assert stage.answer(gate, "allow")["accepted"] is True
    for option in ("deny", "allow"):
        assert stage.answer(gate, option)["code"] == "already-decided"
    assert stage.close(gate, "apply") == "allow"
    assert stage.answer(gate, "deny")["code"] == "closed"


def test_a_gate_has_its_time_and_its_holder_a_little_more() -> None:
    stage = Stage()
    gate = _one(stage)
    stage.at = gate.until - 1
    assert stage.answer(gate, "deny")["accepted"] is True
    stage.at = gate.until + 500
    assert stage.close(gate, "timeout") is None
    assert stage.close(gate, "apply") == "deny"
    late = _one(stage, "c2")
    stage.at = late.until
    assert stage.answer(late, "deny")["code"] == "expired"
    assert stage.now.due_ms == late.until + LATE_MS
    stage.at = late.until + LATE_MS
    stage.feed(Tick())
    assert stage.of(late) == ["attention.requested", "attention.timeout"]
    assert stage.close(late, "apply") == "timeout"
    assert stage.close(late, "withdrawn") == "timeout"
    assert stage.now.due_ms is None


def test_a_gate_that_was_lost_with_its_state_is_dismissed_by_its_holder_once() -> None:
    for why in ("apply", "timeout", "withdrawn"):
        stage = Stage()
        gate = _one(stage)
        stage.state = None
        assert stage.close(gate, why) == "dismissed"
        assert stage.close(gate, why) == "dismissed"
        assert stage.of(gate) == ["attention.requested", "attention.resolved"]
        # Somebody else knows nothing of it and says nothing.
        stage.state = None
        assert stage.feed(Close(gate.ticket, "withdrawn")).events == ()


def test_a_subagents_gate_survives_the_end_of_the_main_run() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    call = {"tool_name": "Agent", "tool_call_id": "spawn"}
    stage.hook("PreToolUse", **call, tool_input={"run_in_background": True})
    stage.hook("PostToolUse", **call, tool_output="started")
    gate = _one(stage)
    stage.hook("Interrupt", reason="cancelled")
    assert stage.answer(gate, "deny")["accepted"] is True


def test_the_state_of_a_busy_desk_fits_its_limit() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    for number in range(QUEUE + 1):
        stage.serial += 1
        made = Command("c" * 61 + f"{number:03}", f"{number:032x}", Instruct(), by="x" * 64)
        assert stage.feed(made).replies[0]["accepted"] is (number < QUEUE)
    stage.feed(Deliver("p" * 16 + ".1", tuple(f"{number:032x}" for number in range(QUEUE))))
    for number in range(QUEUE):
        made = Command("d" * 61 + f"{number:03}", f"{number:032x}", Instruct(), by="x" * 64)
        stage.feed(made)
    for number in range(REQUESTS):
        stage.hook("PermissionRequest", id=f"{number:064}", tool_name="B", tool_call_id=f"{number:063}x")
    tool, call = "\N{SNOWMAN}" * 300, "\N{SNOWMAN}" * 290
    gates = [stage.hold(f"{call}{number:03}", tool) for number in range(GATES + 2)]
    assert sum(gate is not None for gate in gates) == GATES
    for gate in gates[:GATES]:
        assert gate is not None
        stage.feed(Command("e" * 64, "f" * 32, Answer(gate.opened.id, "deny", True), by="x" * 64))
    for number in range(CALLS + 10):
        stage.hook("PreToolUse", tool_name="Bash", tool_call_id=f"{number:064}", tool_input={})
    stage.feed(GiveBack("p" * 16 + ".1"))
    assert stage.state is not None
    assert len(stage.state) <= LIMIT
    assert len(stage.now.gates) == GATES
    assert len(stage.now.queue) == 2 * QUEUE


def test_what_the_front_end_found_wrong_is_only_told() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    before = stage.now
    _, reply = stage.command(Nack("unsupported", "unsupported", "not here"))
    assert reply["accepted"] is False
    last = stage.events[-1]
    assert last.draft.type == "control.rejected"
    assert last.draft.data == {"reason": "unsupported", "code": "unsupported", "detail": "not here"}
    after = stage.now
    after.last_seq = before.last_seq
    assert after == before


SIGNALS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Stop", {}),
    ("StopFailure", {"error_type": "E"}),
    ("Interrupt", {"reason": "cancelled"}),
    ("SessionStart", {"source": "resume"}),
    ("SessionEnd", {"reason": "exit"}),
    ("PostToolUse", {"tool_name": "Bash", "tool_output": "ok"}),
    ("PostToolUseFailure", {"tool_name": "Bash", "error": {"message": "no"}}),
    ("PermissionRequest", {"tool_name": "Bash"}),
    ("PermissionResult", {"tool_name": "Bash", "decision": "rejected"}),
    ("SubagentStop", {"agent_name": "coder"}),
)
calls = st.sampled_from(["c0", "c1", "c2"])
options = st.sampled_from(["allow", "deny"])
picks = st.integers(0, 63)


class GateLife(RuleBasedStateMachine):
    """Holders, answerers, the vendor, time, sweepers and losses, in any order.

    The model keeps what each party was told; the stream must never say more than that, nor less in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.gates: list[Gate] = []
        self.before: bytes | None = None
        self.accepted: list[str] = []
        self.handed: list[str] = []
        self.prompts: list[tuple[str, list[str]]] = []
        self.losses = 0

    def open_gates(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.ended is None]

    def pick(self, gates: list[Gate], number: int) -> Gate:
        """One of the last few: what is long gone is of little interest."""
        return gates[-1 - number % min(3, len(gates))]

    @rule(call=calls, window=st.sampled_from([1_000, WINDOW_MS, WINDOW_MS]))
    def hold(self, call: str, window: int) -> None:
        gate = self.stage.hold(call, window=window)
        if gate is not None:
            self.gates.append(gate)

    @precondition(lambda self: self.open_gates())
    @rule(number=picks, option=options, words=st.booleans())
    def answer(self, number: int, option: str, words: bool) -> None:
        self._answer(self.pick(self.open_gates(), number), option, words)

    @precondition(lambda self: self.gates)
    @rule(number=picks, option=options)
    def answer_any(self, number: int, option: str) -> None:
        self._answer(self.gates[number % len(self.gates)], option, False)

    def _answer(self, gate: Gate, option: str, words: bool) -> None:
        reply = self.stage.answer(gate, option, words=words and option == "deny")
        if reply["accepted"]:
            assert gate.ended is None, "a late answer is refused"
            assert gate.accepted is None or self.losses, "one winner"
            assert self.stage.at < gate.until
            gate.accepted = option

    @precondition(lambda self: any(gate.accepted for gate in self.open_gates()))
    @rule(number=picks, twice=st.booleans())
    def apply(self, number: int, twice: bool) -> None:
        decided = [gate for gate in self.open_gates() if gate.accepted]
        self._close(self.pick(decided, number), "apply", twice)

    @precondition(lambda self: self.open_gates())
    @rule(number=picks, why=st.sampled_from(["apply", "timeout", "withdrawn"]), twice=st.booleans())
    def close(self, number: int, why: Any, twice: bool) -> None:
        self._close(self.pick(self.open_gates(), number), why, twice)

    def _close(self, gate: Gate, why: Any, twice: bool) -> None:
        closed = self.stage.close(gate, why, "words" if gate.accepted == "deny" else None)
        if twice and closed is not None:
            # The answer was lost on the way, so it is done again.
            assert self.stage.close(gate, why) == closed
        if closed in ("allow", "deny"):
            assert closed == gate.accepted, "nothing is applied that was not acknowledged"
        if closed is not None:
            gate.ended = closed

    @precondition(lambda self: self.gates)
    @rule(number=picks)
    def sweep(self, number: int) -> None:
        if number < 16:
            gate = self.gates[number % len(self.gates)]
            self.stage.feed(Close(gate.ticket, "withdrawn"))

    @rule(signal=st.sampled_from(SIGNALS), call=calls, number=picks)
    def vendor(self, signal: tuple[str, dict[str, Any]], call: str, number: int) -> None:
        if number < 24:
            name, fields = signal
            self.stage.hook(name, **fields, **({"tool_call_id": call} if "tool_name" in fields else {}))

    @rule(number=picks)
    def end(self, number: int) -> None:
        if number < 16:
            self.stage.hook("SessionEnd", reason="exit")

    @rule()
    def instruct(self) -> None:
        identity, reply = self.stage.command(Instruct())
        if reply["accepted"]:
            self.accepted.append(identity)

    @rule()
    def prompt(self) -> None:
        queue = self.stage.hook("UserPromptSubmit").get("queue")
        if isinstance(queue, list):
            self.prompts.append((f"p0.{self.stage.serial}", [str(entry) for entry in queue]))

    @precondition(lambda self: self.prompts)
    @rule(
        number=picks, back=st.sampled_from([False, False, True]), lost=st.sampled_from([False, False, True])
    )
    def hand_over(self, number: int, back: bool, lost: bool) -> None:
        ticket, names = self.prompts.pop(number % len(self.prompts))
        gone = tuple(names[:1]) if lost else ()
        given = Deliver(ticket, tuple(name for name in names if name not in gone), gone)
        delivered = self.stage.feed(given).replies[0]["delivered"]
        assert isinstance(delivered, list)
        if back:
            assert self.stage.feed(GiveBack(ticket)).replies[0]["returned"] == delivered
        else:
            self.handed += [str(name) for name in delivered]
        assert self.stage.feed(GiveBack("p9.9")).replies[0]["returned"] == []

    @rule(ms=st.sampled_from([1, 1, 20, 200, 999, 4_000]))
    def pass_time(self, ms: int) -> None:
        self.stage.at += ms

    @rule()
    def tick(self) -> None:
        self.stage.feed(Tick())

    @rule()
    def remember(self) -> None:
        self.before = self.stage.state

    @precondition(lambda self: self.losses == 0 and self.gates)
    @rule(all_of_it=st.booleans(), number=picks)
    def lose(self, all_of_it: bool, number: int) -> None:
        """Redis lost its data, or its last seconds."""
        if number < 4:
            self.losses += 1
            self.stage.state = None if all_of_it or self.before is None else self.before
            self.prompts.clear()

    @invariant()
    def consistent(self) -> None:
        if self.losses == 0:
            check(self.stage.events, self.stage.commands.keys())
        acked = [event.cause for event in self.stage.events if event.draft.type.startswith("control.")]
        assert acked == list(self.stage.commands), "one acknowledgement per command, in order"
        assert len(self.stage.acks) == len(self.stage.commands)
        for gate in self.gates:
            told = [event for event in self.stage.events if event.draft.subject == gate.opened.id]
            answers = [event for event in told if event.draft.type == "attention.answered"]
            if gate.ended in ("allow", "deny") or answers:
                (answered,) = answers
                given = answered.draft.data["answer"]
                assert isinstance(given, dict)
                # What the stream says is what the hook is told.
                assert given["option"] == gate.ended

    def teardown(self) -> None:
        for gate in self.open_gates():
            gate.ended = self.stage.close(gate, "withdrawn")
        for ms in (LATE_MS, 61_000, EXPIRY_MS, 24 * 3_600_000, 24 * 3_600_000):
            self.stage.at += ms
            self.stage.feed(Tick())
        if not self.losses:
            assert not check(self.stage.events, self.stage.commands.keys()), "every request has its terminal"
            self._instructions()
        else:
            for gate in self.gates:
                ends = [
                    kind
                    for kind in self.stage.of(gate)
                    if kind in ("attention.resolved", "attention.timeout")
                ]
                assert ends, "no request is left without its terminal"
        state = self.stage.now
        assert not state.gates
        assert not state.queue
        assert state.due_ms is None

    def _instructions(self) -> None:
        start = "x.kimi-code.instruction."
        said: dict[str, list[str]] = {name: [] for name in self.accepted}
        for event in self.stage.events:
            if event.draft.type.startswith(start):
                assert event.cause is not None
                said[event.cause].append(event.draft.type.removeprefix(start))
        for name, story in said.items():
            settled = [word for word in story if word != "returned"]
            returned = story.count("returned")
            assert story.count("delivered") - returned == (name in self.handed), json.dumps(story)
            assert story.count("dropped") == (name not in self.handed), json.dumps(story)
            assert settled[-1:] == (["delivered"] if name in self.handed else ["dropped"])
        assert len(set(self.handed)) == len(self.handed), "at most once"
        order = [self.accepted.index(name) for name in self.handed]
        assert order == sorted(order), "in order"


TestGateLife = GateLife.TestCase
TestGateLife.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)


@pytest.mark.slow
class TestGateLifeAtLength(GateLife.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=400, stateful_step_count=80, deadline=None)
