"""`aep-kimi pending`, `respond`, `instruct`, `cancel`, against a service that makes its own token."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.app.processes import ROOT, Process, processes
from tests.servers import AnyServer

pytestmark = pytest.mark.slow


@dataclass
class Shop:
    """Two replicas of one deployment, and the command line of their user."""

    replicas: list[Process]
    home: Path

    def run(self, *words: str, replica: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AEP_")}
        return subprocess.run(
            [sys.executable, "-m", "deploy.cli.main", *words],
            cwd=ROOT,
            env=kept
            | {"AEP_URL": self.replicas[replica].url, "XDG_STATE_HOME": str(self.home)}
            | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def hook(self, event: str, session: str = "session_one", **fields: Any) -> Any:
        payload = {"hook_event_name": event, "session_id": session, **fields}
        request = urllib.request.Request(
            self.replicas[0].url + "/hook",
            json.dumps(payload).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=40) as response:
            return json.load(response)

    def hold(self, call: str = "call_1", session: str = "session_one") -> tuple[threading.Thread, list[Any]]:
        replies: list[Any] = []
        fields = {"tool_name": "Bash", "tool_call_id": call, "tool_input": {"command": "make deploy"}}
        thread = threading.Thread(
            target=lambda: replies.append(self.hook("PreToolUse", session, **fields)), daemon=True
        )
        thread.start()
        return thread, replies


@pytest.fixture
def shop(redis_server: AnyServer, redis_url: str, tmp_path: Path) -> Iterator[Shop]:
    environment = {
        "AEP_REDIS_URL": redis_url,
        "AEP_SHARDS": str(redis_server.shards),
        "XDG_STATE_HOME": str(tmp_path),
        "AEP_KIMI_CONTROL": "1",
        "AEP_INSTRUCT": "1",
        "AEP_ATTENTION_TIMEOUT_MS": "30000",
    }
    with processes(2, environment) as started:
        yield Shop(started, tmp_path)


def _waits(shop: Shop) -> str:
    """The line of the one request that waits."""
    for _ in range(50):
        listed = shop.run("pending").stdout
        if listed.strip() != "nothing waits":
            return listed
    raise AssertionError("nothing waits")


def test_the_whole_desk(shop: Shop) -> None:
    token = shop.home / "aep-kimi" / "control-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert any(str(token) in line for line in shop.replicas[0].lines)
    assert not any(token.read_text().strip() in line for line in shop.replicas[0].lines)

    assert shop.run("pending").stdout == "nothing waits\n"
    assert shop.run("respond", "-", "allow").returncode == 1

    thread, replies = shop.hold()
    line = _waits(shop)
    assert "Bash: make deploy" in line
    identity, age, seconds, left, _, session, _ = line.split(maxsplit=6)
    assert identity.startswith("…")
    assert seconds == "s"
    assert int(age) <= 20
    assert 5 <= int(left) <= 30
    assert session == "session_one"

    denied = shop.run("respond", identity.lstrip("…"), "no, use the staging registry")
    assert (denied.returncode, denied.stderr) == (0, "")
    assert denied.stdout.splitlines() == ["accepted", "applied: the call was denied"]
    thread.join(20)
    assert replies[0]["hookSpecificOutput"]["permissionDecisionReason"] == "no, use the staging registry"

    again = shop.run("respond", identity.lstrip("…"), "allow")
    assert again.returncode == 3
    assert "too late" in again.stderr

    thread, replies = shop.hold("call_2")
    _waits(shop)
    wrong = shop.run("respond", "-", "deny", AEP_TOKEN="not-the-token")
    assert wrong.returncode == 3
    assert "unauthorized" in wrong.stderr
    allowed = shop.run("respond", "-", "allow")
    assert allowed.stdout.splitlines() == ["accepted", "applied: the agent goes on by its own rules"]
    thread.join(20)
    assert replies == [{}]

    cancelled = shop.run("cancel", "-")
    assert cancelled.returncode == 3
    assert "unsupported" in cancelled.stderr
    assert "hooks" in cancelled.stderr

    assert shop.run("instruct", "session_one", "use", "staging").returncode == 0
    assert shop.run("instruct", "one", "x" * 4_001).returncode == 3
    assert shop.run("instruct", "nobody", "x").returncode == 1
    prompt = [{"type": "text", "text": "go"}]
    assert shop.hook("UserPromptSubmit", prompt=prompt, is_steer=False) == {"message": "use staging"}


class Deaf:
    """A connection whose other side takes everything and acknowledges nothing of ours."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self._said = [{"type": "control.accepted", "cause": "another"}, {"type": "subscribed", "id": "acks"}]

    def send(self, text: str) -> None:
        self.sent.append(json.loads(text))

    def recv(self, timeout: float) -> str:
        if not self._said:
            time.sleep(min(timeout, 0.1))
            raise TimeoutError
        return json.dumps(self._said.pop())


def test_silence_is_a_timeout_after_retries_of_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.cli import wire

    monkeypatch.setattr(wire, "_AGAIN_SECONDS", 0.05)
    deaf = Deaf()
    made = wire.command("control.attention.respond", "s", {"answer": {"option": "deny"}}, subject="x")
    answer = wire.deliver(wire.Wire(deaf), made, window=0.5)
    assert answer.code == wire.TIMED_OUT == 4
    commands = [frame for frame in deaf.sent if frame["type"].startswith("control")]
    assert len(commands) > 1
    assert all(frame == made for frame in commands)


def test_a_token_file_that_others_can_read_is_not_used(redis_url: str, tmp_path: Path) -> None:
    from deploy.cli import secret

    where = tmp_path / "deep" / "control-token"
    token = secret.make(where)
    assert secret.make(where) == token
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
    where.chmod(0o644)
    with pytest.raises(secret.SecretError, match="chmod 600"):
        secret.read(where)
    environment = {"AEP_REDIS_URL": redis_url, "AEP_DATA_DIR": str(where.parent), "AEP_INSTRUCT": "1"}
    with pytest.raises(RuntimeError, match=r"AEP_INSTRUCT: needs a token.*chmod 600"):
        Process(environment)
