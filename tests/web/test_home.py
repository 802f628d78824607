"""Instance files and tokens, as they are and as they should not be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.web import address
from deploy.web.home import Address, TokenFile, locate, servers
from deploy.web.outbox import stub
from deploy.web.writes import announces


def instance(home: Path, name: str, **said: Any) -> None:
    folder = home / "server" / "instances"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(said))


def test_where_servers_say_they_listen(tmp_path: Path) -> None:
    assert servers(tmp_path) == []
    instance(tmp_path, "1", host="127.0.0.1", port=58627, pid=os.getpid())
    instance(tmp_path, "2", host="0.0.0.0", port=58628, pid=os.getpid())
    instance(tmp_path, "3", host="::", port=58629)
    instance(tmp_path, "4", host="127.0.0.1", port=58627)
    assert servers(tmp_path) == [
        Address("127.0.0.1", 58627),
        Address("127.0.0.1", 58628),
        Address("::1", 58629),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1", "port": "58627"},
        {"host": "127.0.0.1", "port": True},
        {"host": "127.0.0.1", "port": 0},
        {"host": "127.0.0.1", "port": 70_000},
        {"host": "127.0.0.1", "port": 58627, "pid": 2**22 + 7},
        {"host": "127.0.0.1", "port": 58627, "pid": 0},
    ],
)
def test_hints_that_are_none(tmp_path: Path, said: dict[str, Any]) -> None:
    instance(tmp_path, "1", **said)
    assert servers(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\xff"])
def test_files_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    instance(tmp_path, "1")
    (tmp_path / "server" / "instances" / "1.json").write_text(text, "latin-1")
    assert servers(tmp_path) == []


def test_a_token_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = TokenFile(tmp_path)
    assert token.read() is None
    path = tmp_path / "server.token"
    path.write_text("first-token\n")
    assert token.read() == "first-token"
    path.unlink()
    path.write_text("second-token-that-is-longer")
    assert token.read() == "second-token-that-is-longer"
    path.write_text("two words")
    assert token.read() is None
    path.unlink()
    assert token.read() is None


def test_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate(None, {}) == tmp_path / ".kimi-code"
    assert locate(None, {"KIMI_CODE_HOME": "/elsewhere"}) == Path("/elsewhere")
    assert locate("~/mine", {"KIMI_CODE_HOME": "/elsewhere"}) == tmp_path / "mine"


def test_addresses() -> None:
    made = address("http://[::1]:58627")
    assert (made.base, made.stream) == ("http://[::1]:58627/api/v1", "ws://[::1]:58627/api/v1/ws")
    assert address("kimi.example:8000") == Address("kimi.example", 8_000)
    assert address("https://kimi.example").stream == "wss://kimi.example:443/api/v1/ws"
    for wrong in ("ftp://x", "http://", ""):
        with pytest.raises(ValueError, match="--server"):
            address(wrong)


def test_a_stub_keeps_what_tells_a_frame_from_others() -> None:
    frame = {
        "type": "tool.result",
        "seq": 9,
        "epoch": "ep_1",
        "session_id": "s",
        "payload": {"toolCallId": "c", "turnId": 3, "output": "x" * 5_000, "list": [1], "isError": False},
    }
    small = json.loads(stub(json.dumps(frame).encode()))
    assert small == {**frame, "payload": {"toolCallId": "c", "turnId": 3, "isError": False}}
    assert stub(b"no json") == stub(b"[1]") == b"{}"


@pytest.mark.parametrize(
    ("frame", "about"),
    [
        ({"type": "event.approval.resolved", "payload": {"approval_id": "a"}}, "approval a"),
        ({"type": "turn.ended", "payload": {"agentId": "main"}}, "abort"),
        ({"type": "turn.ended", "payload": {"agentId": "agent-0"}}, None),
        ({"type": "turn.ended", "payload": "turn.ended"}, None),
        ({"type": "tool.result", "payload": {"output": '"turn.ended"'}}, None),
        ({"type": "turn.started", "payload": {}}, None),
    ],
)
def test_what_a_frame_announces(frame: dict[str, Any], about: str | None) -> None:
    assert announces(json.dumps(frame).encode()) == about
