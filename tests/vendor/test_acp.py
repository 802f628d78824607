"""The real `kimi acp` behind our tee, driven by the official client library."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import acp as library
from acp import schema

from tests.model_server import ModelServer

from .kimi import Kimi
from .service import CLI, Event, Service, register, types, violations


def tee(url: str, *agent: str) -> list[str]:
    """`aep-kimi acp --url URL -- AGENT`, as an editor's settings have it."""
    return [sys.executable, "-c", CLI, "acp", "--url", url, "--", *agent]


class Editor:
    """A client of the official library that says yes once and then walks away from each question."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[list[schema.PermissionOption]] = []

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **kwargs: Any,
    ) -> schema.RequestPermissionResponse:
        self.asked.append(options)
        outcome: schema.AllowedOutcome | schema.DeniedOutcome
        if len(self.asked) == 1:
            outcome = schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        else:
            outcome = schema.DeniedOutcome(outcome="cancelled")
        return schema.RequestPermissionResponse(outcome=outcome)


RUN_ENDS = {"run.finished", "run.failed", "run.cancelled"}


async def converse(kimi: Kimi, model: ModelServer, url: str) -> tuple[Editor, str]:
    """The whole of an editor's day with the official library; the client and its session."""
    kimi.placeholder_login()
    editor = Editor()
    command, *arguments = tee(url, *kimi.argv, "acp")
    async with library.spawn_agent_process(
        cast(library.Client, editor), command, *arguments, env=kimi.env(), cwd=kimi.project
    ) as (agent, process):
        hello = await agent.initialize(
            protocol_version=1, client_info=schema.Implementation(name="tests", version="1")
        )
        assert hello.agent_capabilities is not None
        assert hello.agent_capabilities.load_session
        session = (await agent.new_session(cwd=str(kimi.project), mcp_servers=[])).session_id
        for scenario in ("bash_ok", "bash_fail"):
            done = await agent.prompt(session_id=session, prompt=[library.text_block(f"MOCK:{scenario}")])
            assert done.stop_reason == "end_turn"
        held = asyncio.create_task(agent.prompt(session_id=session, prompt=[library.text_block("MOCK:hold")]))
        while not model.of("hold"):
            await asyncio.sleep(0.05)
        await agent.cancel(session_id=session)
        assert (await held).stop_reason == "cancelled"
        listed = await agent.list_sessions()
        assert session in [entry.session_id for entry in listed.sessions]
        await agent.load_session(cwd=str(kimi.project), session_id=session, mcp_servers=[])
        if kimi.v2:
            await agent.close_session(session_id=session)
    assert process.returncode == 0
    return editor, session


async def test_the_official_client_notices_nothing(kimi: Kimi, model: ModelServer, service: Service) -> None:
    editor, _ = await converse(kimi, model, service.url)
    assert [option.option_id for option in editor.asked[0]] == ["approve_once", "approve_always", "reject"]
    assert len(editor.asked) == 2
    statuses = {getattr(update, "status", None) for update in editor.updates}
    assert {"completed", "failed"} <= statuses


async def test_the_service_sees_what_happened(kimi: Kimi, model: ModelServer, service: Service) -> None:
    _, session = await converse(kimi, model, service.url)
    last = "session.ended" if kimi.v2 else "session.started"
    events = await asyncio.to_thread(
        service.wait, session, lambda found: types(found).count(last) == 1 + (not kimi.v2)
    )
    assert violations(events) == []
    assert {event["source"] for event in events} == {f"aep://tests/agent/acp/session/{session}"}
    assert events[0]["type"] == "session.started"
    assert events[0]["data"] == {"client": {"name": "tests", "version": "1"}}
    runs = [event["run"] for event in events if event["type"] == "run.started"]
    ends = [event for event in events if event["type"] in RUN_ENDS]
    assert [event["run"] for event in ends] == runs
    assert [event["type"] for event in ends] == ["run.finished", "run.finished", "run.cancelled"]
    assert [event["data"].get("stop_reason") for event in ends[:2]] == ["end_turn", "end_turn"]
    for first, then in (("tool.requested", ("tool.completed", "tool.failed")), ("attention.requested", None)):
        asked = [event for event in events if event["type"] == first]
        told = [event for event in events if event["type"] in (then or ("attention.resolved",))]
        assert [event["cause"] for event in told] == [event["id"] for event in asked]
        assert len(asked) == 2
    assert [e["data"]["tool"]["name"] for e in events if e["type"].startswith("tool.")] == ["Bash"] * 4
    resolutions = [e["data"]["resolution"] for e in events if e["type"] == "attention.resolved"]
    assert resolutions == ["answered", "dismissed"]
    # What was loaded again is not told again.
    assert types(events).count("run.started") == 3


async def test_hooks_and_tee_together_are_two_sessions(
    kimi_newest: Kimi, model: ModelServer, service: Service
) -> None:
    register(kimi_newest, service.hook_url)
    _, session = await converse(kimi_newest, model, service.url)

    def both(found: list[Event]) -> bool:
        return all(
            any(e["agent"] == agent and e["type"] == "session.ended" for e in found)
            for agent in ("acp", "kimi-code")
        )

    events = await asyncio.to_thread(service.wait, session, both)
    assert violations(events) == []
    for agent in ("acp", "kimi-code"):
        own = [event for event in events if event["agent"] == agent]
        assert {event["source"] for event in own} == {f"aep://tests/agent/{agent}/session/{session}"}
        assert types(own).count("run.started") == 3
    assert len({event["id"] for event in events}) == len(events)
    runs = {event["run"]: event["agent"] for event in events if event["type"] == "run.started"}
    assert len(runs) == 6
