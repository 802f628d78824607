"""The real `kimi acp` behind the tee: the same bytes at both ends, and every frame told."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from tests.acp.harness import NOWHERE, Service
from tests.acp.harness import TEE as COMMAND
from tests.model_server import ModelServer

from .acp import Acp, RpcError, cancelled
from .kimi import Kimi

ROOT = Path(__file__).parents[2]
RECORD = [sys.executable, "-I", "-S", str(ROOT / "tests" / "acp" / "record.py")]
TEE = [
    sys.executable,
    "-c",
    f"import sys;sys.path.insert(0,{str(ROOT)!r});import {COMMAND[2]} as m;sys.exit(m.main())",
]


def behind_tee(kimi: Kimi, url: str, kept: Path) -> Acp:
    kept.mkdir()
    return Acp(kimi, [*TEE, "acp", "--url", url, "--", *RECORD, str(kept), *kimi.argv, "acp"])


def converse(acp: Acp, kimi: Kimi, model: ModelServer) -> None:
    """Permission selected and cancelled, a cancel, list, load, close, a line that is no JSON."""
    acp.initialize()
    session = acp.new_session()
    assert acp.prompt(session, "MOCK:bash_ok") == "end_turn"
    acp.permission = cancelled
    assert acp.prompt(session, "MOCK:bash_fail") == "end_turn"
    held = acp.start_prompt(session, "MOCK:hold")
    acp.wait(lambda: model.of("hold"), "a prompt that the model holds")
    acp.notify("session/cancel", {"sessionId": session})
    assert acp.answer(held)["stopReason"] == "cancelled"
    acp.send_raw(b"this is not JSON \xff\r\n")
    acp.request("session/list", {})
    acp.request("session/load", {"sessionId": session, "cwd": str(kimi.project), "mcpServers": []})
    # 0.28.0 has no such method.
    with suppress(RpcError):
        acp.request("session/close", {"sessionId": session})


def test_bytes_and_frames_of_a_real_session(kimi: Kimi, model: ModelServer, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Service() as service:
        with behind_tee(kimi, service.url, kept) as acp:
            converse(acp, kimi, model)
            assert acp.end() == 0
        told = service.lines
    sent, received = b"".join(acp.sent), b"".join(acp.received)
    assert (kept / "to-agent").read_bytes() == sent
    assert (kept / "to-client").read_bytes() == received
    for direction, wire in (("c2a", sent), ("a2c", received)):
        frames = [json.loads(line) for line in wire.split(b"\n") if line and b"\xff" not in line]
        assert [line["frame"] for line in told if line["dir"] == direction] == frames
    assert [line["n"] for line in told] == list(range(1, len(told) + 1))
    assert told[-1]["frame"] == {"exit": 0, "lost": 0}


def test_without_a_service_a_real_session_is_the_same(kimi: Kimi, model: ModelServer, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with behind_tee(kimi, NOWHERE, kept) as acp:
        converse(acp, kimi, model)
        assert acp.end() == 0
    assert (kept / "to-agent").read_bytes() == b"".join(acp.sent)
    assert (kept / "to-client").read_bytes() == b"".join(acp.received)
