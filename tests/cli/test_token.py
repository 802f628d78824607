"""`aep-kimi token`: made once, stored as a digest, taken back while the service runs."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.cli.main import main
from handlers import token_file
from handlers.tokens import token_digest
from tests.app.replica import running
from tests.servers import AnyServer


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "dir" / "tokens"
    monkeypatch.setenv("AEP_TOKENS_FILE", str(found))
    return found


def new(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", "new", *words]) == 0
    return capsys.readouterr().out.strip()


def test_new_list_revoke(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = new(capsys, "anna", "--rights", "emit,watch,steer", "--rate", "50", "--label", "Anna's  laptop")
    other = new(capsys, "ben")
    assert token.startswith("aep_")
    assert len(token) > 40
    text = path.read_text()
    assert token not in text
    assert token_digest(token) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["token", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[1:] == ["anna", "emit,steer,watch", "rate=50", "Anna's laptop"]
    assert main(["token", "list", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["emitter"] for entry in listed] == ["anna", "ben"]
    assert token not in json.dumps(listed)
    path.write_text("# ours\n\n" + path.read_text())
    assert main(["token", "revoke", listed[0]["id"]]) == 0
    assert path.read_text().startswith("# ours\n\nsha256:")
    assert token_digest(token) not in path.read_text()
    assert token_digest(other) in path.read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("new", "a/b"), "EMITTER: 'a/b' cannot be an emitter's name"),
        (("new", "a b"), "EMITTER: expected one word, not 'a b'"),
        (
            ("new", "anna", "--rights", "fly"),
            "--rights: rights are emit, watch, answer, steer, all, not 'fly'",
        ),
        (("new", "anna", "--rights", ""), "--rights: expected one word, not ''"),
        (("new", "anna", "--label", "rate=5"), "--label: 'rate=5' cannot be a label"),
        (("new", "anna", "--rate", "-1"), "--rate: rate is a number, not '-1'"),
        (("new", "anna", "--body", "-1"), "--body: body is a number, not '-1'"),
        (("revoke", "nobody"), "no token is named 'nobody'"),
        (("revoke", "abcdef"), "no token is named 'abcdef'"),
    ],
)
def test_what_cannot_be_done(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    new(capsys, "anna")
    before = path.read_text()
    assert main(["token", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"aep-kimi token: {problem}")
    assert path.read_text() == before


@pytest.mark.parametrize("words", [("new", "ben"), ("list",), ("revoke", "ben")])
def test_a_file_that_is_wrong_is_named_with_its_line(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    new(capsys, "anna")
    path.write_text(path.read_text() + "nonsense\n")
    assert main(["token", *words]) == 2
    assert capsys.readouterr().err.startswith(f"aep-kimi token: {path}: line 2: ")


def test_who_could_read_it_still_can(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(capsys, "--emitter", "anna")
    path.chmod(0o640)
    new(capsys, "ben")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert main(["token", "new", "ben", "--emitter", "anna"]) == 2
    assert main(["token", "new"]) == 2


def test_a_name_that_two_have_revokes_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        new(capsys, "anna", "--label", "twice")
    assert main(["token", "revoke", "twice"]) == 2
    assert "2 tokens" in capsys.readouterr().err


def test_without_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AEP_TOKENS_FILE", raising=False)
    assert main(["token", "list"]) == 2
    assert "AEP_TOKENS_FILE" in capsys.readouterr().err


def test_a_damaged_file_is_not_made_worse(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.mkdir()
    path.write_text("nonsense\n")
    assert main(["token", "new", "anna"]) == 2
    assert path.read_text() == "nonsense\n"
    assert [entry.name for entry in path.parent.iterdir() if ".tokens." in entry.name] == []


def test_many_at_once(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda n: token_file.add(path, f"e{n}", "emit"), range(40)))
    assert {grant.digest for grant in token_file.grants(path)} == {token_digest(token) for token in tokens}


@pytest.mark.skipif(sys.platform == "win32", reason="a service of one user")
async def test_a_running_service_notices(
    redis_server: AnyServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = new(capsys, "anna")
    async with running(redis_server, tokens_file=str(path)) as replica:

        async def status(token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            payload = {"hook_event_name": "Stop", "session_id": "s"}
            return (await replica.client.post("/hook", json=payload, headers=headers)).status_code

        async def becomes(token: str, wanted: int) -> None:
            async with asyncio.timeout(20):
                while await status(token) != wanted:
                    await asyncio.sleep(0.1)

        assert await status(first) == 200
        second = new(capsys, "ben", "--label", "Ben")
        await becomes(second, 200)
        assert main(["token", "revoke", "Ben"]) == 0
        await becomes(second, 401)
        assert await status(first) == 200
