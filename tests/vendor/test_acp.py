"""The real `kimi acp` behind our tee, driven by the official client library."""

from __future__ import annotations

import sys
from typing import Any, cast

import acp as library
from acp import schema

from .kimi import Kimi
from .recorder import Recorder
from .service import CLI


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


async def test_the_official_client_through_the_tee(kimi: Kimi, recorder: Recorder) -> None:
    kimi.placeholder_login()
    editor = Editor()
    client = cast(library.Client, editor)
    command, *arguments = tee(recorder.url, *kimi.argv, "acp")
    async with library.spawn_agent_process(client, command, *arguments, env=kimi.env(), cwd=kimi.project) as (
        agent,
        process,
    ):
        hello = await agent.initialize(protocol_version=1)
        assert hello.agent_capabilities is not None
        assert hello.agent_capabilities.load_session
        session = (await agent.new_session(cwd=str(kimi.project), mcp_servers=[])).session_id
        for scenario in ("bash_ok", "bash_fail"):
            done = await agent.prompt(session_id=session, prompt=[library.text_block(f"MOCK:{scenario}")])
            assert done.stop_reason == "end_turn"
        assert [option.option_id for option in editor.asked[0]] == [
            "approve_once",
            "approve_always",
            "reject",
        ]
        assert len(editor.asked) == 2
        listed = await agent.list_sessions()
        assert session in [entry.session_id for entry in listed.sessions]
        await agent.load_session(cwd=str(kimi.project), session_id=session, mcp_servers=[])
        if kimi.v2:
            await agent.close_session(session_id=session)
    assert process.returncode == 0
    statuses = {getattr(update, "status", None) for update in editor.updates}
    assert {"completed", "failed"} <= statuses
    assert {p.path for p in recorder.posted} == {"/frames/acp"}
