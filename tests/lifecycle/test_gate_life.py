"""The whole life of gates and instructions against a model, under any timing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from handlers.lifecycle.commands import Instruct
from handlers.lifecycle.gates import LATE_MS, Close
from handlers.lifecycle.instructions import EXPIRY_MS, Deliver, GiveBack
from handlers.lifecycle.reducer import Tick
from tests.lifecycle.desk import WINDOW_MS, Gate, Stage
from tests.lifecycle.invariants import check
from tests.lifecycle.shelf import SESSION

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
            self.prompts.append((f"p0.{self.stage.shelf.serial}", [str(entry) for entry in queue]))

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
        self.before = self.stage.shelf.states.get(SESSION)

    @precondition(lambda self: self.losses == 0 and self.gates)
    @rule(all_of_it=st.booleans(), number=picks)
    def lose(self, all_of_it: bool, number: int) -> None:
        """Redis lost its data, or its last seconds."""
        if number < 4:
            self.losses += 1
            self.stage.shelf.put(None if all_of_it else self.before)
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
