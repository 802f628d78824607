"""Held tool calls, from the hook to the answer on another replica and back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.app.replica import until
from tests.control.desk import about, desk, hold, replicas
from tests.servers import AnyServer


async def test_allow_is_no_objection_and_says_so(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        await one.hook("UserPromptSubmit")
        held = hold(one)
        request = await human.request(held.call)
        assert request["data"]["kind"] == "permission"
        assert request["data"]["prompt"] == "Bash: make deploy"
        assert request["data"]["options"] == [
            {"id": "allow", "label": "Allow"},
            {"id": "deny", "label": "Deny"},
        ]
        assert request["data"]["respond_via"] == ["control"]
        assert request["data"]["expires_at"] > request["time"]
        ack = await human.answer(request, option="allow")
        assert (ack["type"], ack.get("run")) == ("control.accepted", request["run"])
        assert await held.verdict() is None
        events = (await other.replay()).events
        assert about(events, request) == ["requested", "answered allow", "resolved answered"]
        answered = next(event for event in events if event["type"] == "attention.answered")
        assert answered["cause"] == human.sent[0]["id"]
        assert answered["data"] == {"answer": {"option": "allow"}, "by": "sender", "via": "control"}
        assert not [event for event in events if event["type"] == "tool.denied"]


async def test_deny_reaches_the_agent_with_its_reason(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        held = hold(one)
        request = await human.request(held.call)
        await human.answer(request, option="deny", text="not on a Friday")
        assert await held.verdict() == "not on a Friday"
        events = (await one.replay()).events
        assert about(events, request) == ["requested", "answered deny", "resolved answered"]
        answered = next(event for event in events if event["type"] == "attention.answered")
        assert answered["data"]["answer"] == {"option": "deny", "text": "not on a Friday"}
        denied = next(event for event in events if event["type"] == "tool.denied")
        assert denied["data"] == {"tool": {"name": "Bash", "call_id": held.call}, "by": "policy"}
        # The vendor tells its own failure of a denied call, which has its terminal already.
        await one.hook(
            "PostToolUseFailure", tool_name="Bash", tool_call_id=held.call, error={"message": "no"}
        )
        assert not [event for event in (await one.replay()).events if event["type"] == "tool.failed"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"text": " DENY "}, "Denied by the operator."),
        ({"text": "no, use the staging registry"}, "no, use the staging registry"),
        ({"option": "deny"}, "Denied by the operator."),
        ({"text": "Allow"}, None),
        ({"option": "allow", "text": "but carefully"}, None),
        ({"text": "allow it"}, "allow it"),
    ],
)
async def test_text_is_a_word_or_a_reason_and_never_permission(
    redis_server: AnyServer, answer: dict[str, Any], reason: str | None
) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        held = hold(one)
        ack = await human.answer(await human.request(held.call), **answer)
        assert ack["type"] == "control.accepted"
        assert await held.verdict() == reason


async def test_what_is_no_answer_is_invalid_and_the_gate_stays_open(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        held = hold(one)
        request = await human.request(held.call)
        for answer, code in (
            ({}, "empty"),
            ({"text": "   "}, "empty"),
            ({"option": "Allow"}, "unknown-option"),
            ({"option": "allow_session"}, "unknown-option"),
            ({"option": 1}, "bad-answer"),
            ({"values": {"a": 1}}, "no-form"),
            ({"text": "x" * 4_001}, "too-long"),
        ):
            ack = await human.answer(request, **answer)
            assert ack["data"]["reason"] == "invalid", answer
            assert ack["data"]["code"] == code
            assert ack["data"]["detail"]
        unknown = await human.answer({**request, "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, option="allow")
        assert unknown["data"]["code"] == "unknown-request"
        assert not held.task.done()
        await human.answer(request, option="deny")
        assert await held.verdict() is not None


async def test_timeout_frees_the_hook_without_a_decision(redis_server: AnyServer) -> None:
    async with replicas(redis_server, attention_timeout_ms=1_000) as (one, other), desk(other) as human:
        held = hold(one)
        request = await human.request(held.call)
        assert await held.verdict() is None
        assert (await human.terminal(request))["type"] == "attention.timeout"
        late = await human.answer(request, option="deny")
        assert late["data"]["reason"] == "refused"
        assert late["data"]["code"] == "closed"
        assert "timeout" in late["data"]["detail"]
        assert about((await one.replay()).events, request) == ["requested", "timeout"]


async def test_a_client_that_hangs_up_closes_its_gate(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        held = hold(one)
        request = await human.request(held.call)
        await held.hang_up()
        terminal = await human.terminal(request)
        assert terminal["data"]["resolution"] == "dismissed"
        late = await human.answer(request, option="allow")
        assert late["data"]["code"] == "closed"
        await until(lambda: len(one.service.holding) == 0)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("PostToolUse", {"tool_name": "Bash", "tool_output": "ok"}),
        ("PostToolUseFailure", {"tool_name": "Bash", "error": {"message": "no"}}),
        ("PermissionRequest", {"tool_name": "Bash", "id": "approval_1", "action": "run"}),
        ("Interrupt", {"reason": "cancelled"}),
        ("StopFailure", {"error_type": "APIError"}),
        ("SessionEnd", {"reason": "exit"}),
    ],
)
async def test_whatever_shows_that_nobody_waits_closes_a_gate(
    redis_server: AnyServer, event: str, fields: dict[str, Any]
) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        await one.hook("SessionStart", source="startup")
        await one.hook("UserPromptSubmit", is_steer=False)
        held = hold(one)
        request = await human.request(held.call)
        await other.hook(event, tool_call_id=held.call, **fields)
        assert (await human.terminal(request))["data"]["resolution"] == "dismissed"
        assert await held.verdict() is None
        events = (await one.replay()).events
        assert about(events, request) == ["requested", "resolved dismissed"]
        if event == "SessionEnd":
            assert events[-1]["type"] == "session.ended"


async def test_requests_answered_elsewhere_are_refused(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        await one.hook("UserPromptSubmit")
        asked = {"tool_name": "Bash", "tool_call_id": "c1", "id": "approval_1", "action": "run"}
        await one.hook("PermissionRequest", **asked)
        request = await human.wait(lambda frame: frame["type"] == "attention.requested")
        ack = await human.answer(request, option="allow")
        assert (ack["data"]["reason"], ack["data"]["code"]) == ("refused", "oob")


async def test_scope_of_the_gate(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1, gate_tools=("Bash", "mcp__*", "ExitPlanMode")) as (one,):
        for tool, gated in (
            ("Bash", True),
            ("mcp__db__drop", True),
            ("ExitPlanMode", True),
            ("ReadFile", False),
            ("AskUserQuestion", False),
        ):
            held = hold(one, tool=tool)
            if gated:
                await until(lambda: len(one.service.holding) == 1)
                await held.hang_up()
                await until(lambda: len(one.service.holding) == 0)
            else:
                assert await held.verdict() is None
        assert await hold(one, "unknown").verdict() is None
        response = await one.hook("PreToolUse", tool_name="Bash", tool_input={})
        assert response.json() == {}


async def test_by_default_interactive_tools_are_not_held(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,):
        for tool in ("AskUserQuestion", "ExitPlanMode"):
            assert await hold(one, tool=tool).verdict() is None
        assert one.service.counters["gates.held"] == 0


async def test_past_the_cap_new_gates_are_let_go_and_counted(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1, max_held=3) as (one,), desk(one) as human:
        held = [hold(one, f"s{number}") for number in range(3)]
        await until(lambda: len(one.service.holding) == 3)
        assert await hold(one, "more").verdict() is None
        assert one.service.counters["gates.refused.full"] == 1
        await human.answer(await human.request(held[0].call), option="deny")
        assert await held[0].verdict() is not None
        late = hold(one, "late")
        await human.request(late.call)
        for one_held in (*held[1:], late):
            await one_held.hang_up()


async def test_a_stopping_replica_lets_its_hooks_go(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        held = hold(one)
        request = await human.request(held.call)
        one.service.drain()
        assert await held.verdict() is None
        assert (await human.terminal(request))["data"]["resolution"] == "dismissed"


async def test_capture_of_a_request(redis_server: AnyServer) -> None:
    from handlers.aep.levels import Capture

    expected = {
        Capture.METADATA: ("kimi-code requests permission: Bash", "allow"),
        Capture.REDACTED: ("Bash: make deploy", "Allow"),
        Capture.FULL: ("Bash: make deploy", "Allow"),
    }
    for level, said in expected.items():
        async with replicas(redis_server, 1, capture_attention=level) as (one,), desk(one) as human:
            held = hold(one)
            request = await human.request(held.call)
            assert request["capture"] == level.value
            ack = await human.answer(request, text="use staging")
            assert ack["type"] == "control.accepted"
            assert await held.verdict() == "use staging"
            events = (await one.replay()).events
            answered = next(event for event in events if event["type"] == "attention.answered")
            data = request["data"]
            assert (data["prompt"], data["options"][0]["label"]) == said
            assert ("context" in data) == (level is Capture.FULL)
            assert ("text" in answered["data"]["answer"]) == level.allows(Capture.REDACTED)


async def test_memory_of_a_payload_is_not_held(redis_server: AnyServer) -> None:
    import gc

    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        marker = "held-payload-marker-" * 500
        held = hold(one, tool_input={"command": "x", "content": marker})
        await human.request(held.call)
        await asyncio.sleep(0.05)
        gc.collect()
        service: list[Any] = [one.service.holding, one.service.engine]
        assert service
        alive = [
            found
            for found in gc.get_objects()
            if isinstance(found, dict) and found.get("content") == marker and "command" in found
        ]
        # What the test itself sent is all that is left of it.
        assert len(alive) <= 1
        await held.hang_up()


async def test_without_a_background_a_hold_looks_by_itself_and_a_schedule_sweeps(
    redis_server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        # As on a host that runs nothing between requests: no looks, no hints.
        lonely = one.service.holding
        monkeypatch.setattr(lonely.vigil, "running", False)
        monkeypatch.setattr(lonely.vigil, "look", _nothing)
        monkeypatch.setattr(lonely, "wake", lambda key: None)
        held = hold(one)
        request = await human.request(held.call)
        await human.answer(request, option="deny", text="no")
        assert await held.verdict() == "no"


async def _nothing() -> None:
    pass


async def test_the_scheduled_call_buries_what_the_dead_left(redis_server: AnyServer) -> None:
    from tests.app.replica import fresh_prefix

    prefix = fresh_prefix()
    async with replicas(redis_server, 2, redis_prefix=prefix) as (one, other), desk(other) as human:
        held = hold(one)
        request = await human.request(held.call)
        # It stops saying that it lives, as a frozen process does; the other one only sweeps when called.
        for replica in (one, other):
            for task in replica.service._tasks[-1:]:
                task.cancel()
        holder = one.service.holding.vigil.holder
        at = one.service.keys.alive(holder)
        await one.service.client.call(at, "DEL", at)
        await other.service.sweep()
        assert (await human.terminal(request))["data"]["resolution"] == "dismissed"
        await held.hang_up()
