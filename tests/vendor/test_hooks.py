"""The hook events of the real binary, through a hook command that posts them to a recorder."""

from __future__ import annotations

from tests.model_server import ModelServer

from .kimi import Kimi
from .recorder import Recorder

CURL = "curl -s -m 5 -H 'content-type: application/json' --data-binary @- {url} >/dev/null || exit 0"


def test_the_fixtures_reach_a_real_session(kimi: Kimi, recorder: Recorder, model: ModelServer) -> None:
    kimi.register(CURL.format(url=recorder.hook_url))
    printed = kimi.run_print("MOCK:bash_ok please")
    assert printed.code == 0, printed.stderr
    assert recorder.wait("PostToolUse", "Stop")
    assert [p["tool_input"] for p in recorder.of("PreToolUse")] == [{"command": "echo mock-ok"}]
    assert {p.payload["session_id"] for p in recorder.posted} == {printed.session}
    assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
