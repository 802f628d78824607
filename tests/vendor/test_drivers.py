"""Each driver does what it says, against the real binary: `kimi web`, `kimi acp`, the interactive program."""

from __future__ import annotations

from tests.model_server import ModelServer

from .acp import Acp, cancelled
from .kimi import Kimi
from .tui import Tui
from .web import Frames, Web


def test_web_session_with_approval_question_and_abort(kimi: Kimi, model: ModelServer) -> None:
    with Web(kimi) as web:
        session = web.create(title="a session")
        with Frames(web, [session]) as frames:
            web.prompt(session, "MOCK:bash_ok")
            approval = web.pending(session)[0]
            assert approval["tool_name"] == "Bash"
            assert web.approve(session, approval["approval_id"]).code == 0
            assert web.approve(session, approval["approval_id"]).code == 40902
            assert frames.wait("turn.ended")["reason"] == "completed"

            web.prompt(session, "MOCK:ask")
            question = web.pending(session, "questions")[0]
            answers = {"q_0": {"kind": "single", "option_id": "opt_0_1"}}
            assert web.choose(session, question["question_id"], answers).code == 0
            assert frames.wait("turn.ended", 2)["reason"] == "completed"
            assert "Blue" in model.of("ask")[1].texts("tool")[-1]

            web.prompt(session, "MOCK:hold")
            frames.wait("turn.started", 3)
            assert web.abort(session).code == 0
            assert frames.wait("turn.ended", 3)["reason"] == "cancelled"
            web.idle(session)
        assert web.stop() == 0
    assert web.instances == []


def test_acp_session_with_permission_and_cancel(kimi: Kimi, model: ModelServer) -> None:
    with Acp(kimi) as acp:
        assert acp.initialize()["protocolVersion"] == 1
        session = acp.new_session()
        assert acp.prompt(session, "MOCK:bash_ok") == "end_turn"
        acp.permission = cancelled
        assert acp.prompt(session, "MOCK:bash_fail") == "end_turn"
        assert len(acp.asked("session/request_permission")) == 2
        held = acp.start_prompt(session, "MOCK:hold")
        acp.wait(lambda: model.of("hold"), "a prompt that the model holds")
        acp.notify("session/cancel", {"sessionId": session})
        assert acp.answer(held)["stopReason"] == "cancelled"
        statuses = [u.get("status") for u in acp.updates("tool_call_update")]
        assert "completed" in statuses
        assert "failed" in statuses
        assert acp.end() == 0


def test_tui_session_with_approvals(kimi: Kimi, model: ModelServer) -> None:
    with Tui(kimi) as tui:
        tui.ready()
        tui.type("MOCK:bash_ok please")
        tui.wait("Run this command?")
        tui.press("1")
        tui.wait("The command printed mock-ok.")
        tui.type("MOCK:bash_fail please")
        tui.wait("Run this command?")
        tui.press("3")
        tui.wait("The command failed.")
        tui.type("/exit")
        tui.wait_end()
    assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
    assert "reject" in model.of("bash_fail")[1].texts("tool")[-1].lower()
