"""The whole life of gates and instructions, by examples."""

from __future__ import annotations

from handlers.lifecycle.bounds import CALLS, GATES, QUEUE, REQUESTS
from handlers.lifecycle.commands import Answer, Command, Instruct, Nack
from handlers.lifecycle.gates import LATE_MS, Close
from handlers.lifecycle.instructions import Deliver, GiveBack
from handlers.lifecycle.reducer import Tick
from tests.lifecycle.desk import Stage, one
from tests.lifecycle.support import types


def test_decided_is_not_answered() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    gate = one(stage)
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
    gate = one(stage)
    assert stage.answer(gate, "allow")["accepted"] is True
    for option in ("deny", "allow"):
        assert stage.answer(gate, option)["code"] == "already-decided"
    assert stage.close(gate, "apply") == "allow"
    assert stage.answer(gate, "deny")["code"] == "closed"


def test_a_gate_has_its_time_and_its_holder_a_little_more() -> None:
    stage = Stage()
    gate = one(stage)
    stage.at = gate.until - 1
    assert stage.answer(gate, "deny")["accepted"] is True
    stage.at = gate.until + 500
    assert stage.close(gate, "timeout") is None
    assert stage.close(gate, "apply") == "deny"
    late = one(stage, "c2")
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
        gate = one(stage)
        stage.shelf.put(None)
        assert stage.close(gate, why) == "dismissed"
        assert stage.close(gate, why) == "dismissed"
        assert stage.of(gate) == ["attention.requested", "attention.resolved"]
        # Somebody else knows nothing of it and says nothing.
        stage.shelf.put(None)
        assert stage.feed(Close(gate.ticket, "withdrawn")).events == ()


def test_a_subagents_gate_survives_the_end_of_the_main_run() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    call = {"tool_name": "Agent", "tool_call_id": "spawn"}
    stage.hook("PreToolUse", **call, tool_input={"run_in_background": True})
    stage.hook("PostToolUse", **call, tool_output="started")
    gate = one(stage)
    stage.hook("Interrupt", reason="cancelled")
    assert stage.answer(gate, "deny")["accepted"] is True


def test_the_state_of_a_busy_desk_fits_its_limit() -> None:
    stage = Stage()
    stage.hook("UserPromptSubmit")
    for number in range(QUEUE + 1):
        stage.shelf.serial += 1
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
