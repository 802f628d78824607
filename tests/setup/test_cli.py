"""The command line: what it registers, what it says, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.setup import blocks, cli, context
from deploy.setup.document import Document
from tests.setup.fakes import fake_kimi
from tests.setup.shapes import FOUND, HOOK, REAL

COMMANDS = ("write", "remove", "status", "doctor")


@pytest.fixture
def env(home: Path, tmp_path: Path) -> dict[str, str]:
    """A machine with Kimi Code 2.1.0."""
    kimi = fake_kimi(tmp_path / "npm", "2.1.0")
    return {
        "PATH": f"{kimi.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(tmp_path),
        "KIMI_CODE_HOME": str(home),
    }


def config(home: Path) -> bytes:
    return (home / "config.toml").read_bytes()


def calls(home: Path) -> dict[str, blocks.Call]:
    entries = Document(config(home).decode()).entries
    parsed = {e.values["event"]: blocks.parse_command(e.command) for e in entries}
    return {event: call for event, call in parsed.items() if call}


def run(env: dict[str, str], *words: str) -> int:
    return cli.main([words[0], "kimi-code", *words[1:]], env)


def test_write_registers_all_events_with_this_interpreter(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(env, "write") == 0
    found = calls(home)
    assert tuple(found) == blocks.EVENTS_20
    call = found["Stop"]
    assert (call.python, call.shim) == (os.path.abspath(sys.executable), str(context.SHIM))
    assert os.access(call.python, os.X_OK)
    assert os.access(call.shim, os.R_OK)
    assert call.url == "http://127.0.0.1:8398/hook"
    said = capsys.readouterr().out
    assert "Kimi Code 2.1.0" in said
    assert "20 hooks for http://127.0.0.1:8398/hook" in said
    assert "/reload" in said


def test_without_a_vendor_only_what_every_version_accepts(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run({"PATH": "", "KIMI_CODE_HOME": str(home)}, "write") == 0
    assert tuple(calls(home)) == blocks.EVENTS_16
    assert "--vendor-version tells it" in capsys.readouterr().out


def test_the_version_can_be_told(env: dict[str, str], home: Path) -> None:
    assert run(env, "write", "--vendor-version", "0.28.0") == 0
    assert tuple(calls(home)) == blocks.EVENTS_16
    assert run(env, "write", "--vendor-version", "new") == 1
    assert run(env, "write") == 0
    assert tuple(calls(home)) == blocks.EVENTS_20


def test_an_update_of_the_vendor_makes_the_fence_stale(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(env, "write", "--vendor-version", "0.28.0") == 0
    capsys.readouterr()
    assert run(env, "status") == 0
    assert "events missing: UserPromptQueued, TurnStarted" in capsys.readouterr().out


def test_what_is_not_said_again_is_kept(env: dict[str, str], home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    assert run(env, "write", "--url", "http://h:1", "--token-file", str(token), "--control") == 0
    before = config(home)
    assert run(env, "write") == 0
    assert config(home) == before
    assert run(env, "write", "--url", "http://h:2/hook") == 0
    assert calls(home)["Stop"] == blocks.Call(
        os.path.abspath(sys.executable), str(context.SHIM), "http://h:2/hook", str(token)
    )
    assert calls(home)["PreToolUse"].timeout_ms == 55000
    assert run(env, "write", "--no-control", "--no-token-file") == 0
    assert calls(home)["PreToolUse"].timeout_ms is None
    assert calls(home)["PreToolUse"].token_file == ""


def test_the_environment_names_the_service(env: dict[str, str], home: Path) -> None:
    assert run(env | {"AEP_URL": "http://h:7"}, "write") == 0
    assert calls(home)["Stop"].url == "http://h:7/hook"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("", "holds no token"),
        ("two words", "holds no token"),
        ("a\nb", "holds no token"),
    ],
)
def test_a_token_file_without_a_token_is_refused(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    token = home / "token"
    if content is not None:
        token.write_text(content)
    assert run(env, "write", "--token-file", str(token)) == 1
    assert words in capsys.readouterr().err
    assert config(home) == REAL


def test_a_dry_run_shows_and_changes_nothing(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(env, "write", "--dry-run") == 0
    said = capsys.readouterr().out
    assert said.count("+[[hooks]]") == 20
    assert "sk-0123456789abcdef" not in said
    assert config(home) == REAL
    assert [p.name for p in home.iterdir()] == ["config.toml"]
    assert run(env, "write") == 0
    assert run(env, "remove", "--dry-run") == 0
    assert capsys.readouterr().out.count("-[[hooks]]") == 20


def test_fix_shows_the_difference(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_bytes(b"hooks = []\n" + REAL)
    assert run(env, "write") == 1
    assert "line 1: `hooks = []` forbids" in capsys.readouterr().err
    assert run(env, "write", "--fix") == 0
    assert "-hooks = []" in capsys.readouterr().out
    assert run(env, "remove") == 0
    assert config(home) == REAL


def test_refence_puts_one_fence_at_the_end(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = FOUND["saved by Kimi Code, hooks around"]
    (home / "config.toml").write_bytes(shape.data)
    assert run(env, "write") == 1
    assert "run `aep-setup write kimi-code --refence`" in capsys.readouterr().err
    assert run(env, "write", "--refence") == 0
    assert config(home).startswith(shape.without + b"# >>> aep-kimi hooks")
    assert run(env, "remove") == 0
    assert config(home) == shape.without


@pytest.mark.parametrize(
    ("name", "state"),
    [
        (None, "absent"),
        ("current", "stale"),
        ("the fence twice", "broken"),
        ("the end marker lost", "broken"),
        ("saved by Kimi Code", "bare"),
    ],
)
def test_status_as_json(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str], name: str | None, state: str
) -> None:
    if name:
        (home / "config.toml").write_bytes(FOUND[name].data)
    assert run(env, "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == state
    assert found["config"] == str(home / "config.toml")
    assert (found["version"], found["engine"], found["accepts"]) == ("2.1.0", "agent-core-v2", 20)
    assert len(found["events"]) == (16 if name else 0)
    assert run(env, "status") == 0
    assert capsys.readouterr().out.startswith("hooks ")


def test_status_of_a_current_registration(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(env, "write", "--control") == 0
    capsys.readouterr()
    assert run(env, "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["stale"], found["control"]) == ("current", [], True)
    assert found["url"] == "http://127.0.0.1:8398/hook"
    assert run(env, "status", "--json", "--url", "http://h:1") == 0
    assert json.loads(capsys.readouterr().out)["stale"] == [
        "address: http://127.0.0.1:8398/hook instead of http://h:1/hook"
    ]


def test_status_of_a_file_that_cannot_be_read(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_bytes(b"a = \n")
    assert run(env, "status", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "unreadable"
    assert "line 1" in found["error"]


def test_another_observer_is_shown(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_bytes(HOOK.replace(b"say done", b"node /x/kimi-hook.js http://127.0.0.1:1"))
    assert run(env, "status") == 0
    assert "line 1: node /x/kimi-hook.js" in capsys.readouterr().out
    assert run(env, "write") == 1
    assert "line 1: another observer is registered" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_reads_like_a_manual(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("--home DIR", "--vendor-version VERSION", "--kimi FILE", "kimi-code"):
        assert word in said
    assert len(said) > 800


def test_the_help_of_all_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    for word in (*COMMANDS, "exit codes", "examples", "KIMI_CODE_HOME"):
        assert word in said


@pytest.mark.parametrize("words", [[], ["write"], ["write", "claude"], ["write", "kimi-code", "--nope"]])
def test_wrong_use_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: aep-setup" in capsys.readouterr().err


def test_a_byte_order_mark_is_kept_and_told(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_bytes(b"\xef\xbb\xbf" + REAL)
    assert run(env, "write") == 0
    assert "cannot read a file with a byte order mark; save it without one" in capsys.readouterr().out
    assert config(home).startswith(b"\xef\xbb\xbf" + REAL)


def test_remove_asks_no_vendor(env: dict[str, str], home: Path, tmp_path: Path) -> None:
    assert run(env, "write") == 0
    assert run(env | {"PATH": ""}, "remove", "--kimi", str(tmp_path / "none")) == 0
    assert config(home) == REAL


def test_a_missing_shim_is_refused(
    env: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "SHIM", home / "kimi_hook.py")
    assert run(env, "write") == 1
    assert "install aep-kimi again" in capsys.readouterr().err
    assert config(home) == REAL


@pytest.mark.skipif(sys.platform != "linux", reason="paths are bytes")
def test_a_home_whose_path_is_not_unicode(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"caf\xe9")
    home.mkdir()
    (home / "config.toml").write_bytes(REAL)
    words = [sys.executable, "-m", "deploy.setup.cli"]
    for command in ("write", "status", "remove"):
        done = subprocess.run(
            [*words, command, "kimi-code", "--home", home],
            cwd=context.SHIM.parents[2],
            env={"PATH": "/nowhere"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert rb"caf\udce9" in done.stdout
    assert config(home) == REAL


def test_a_reader_that_leaves_early_is_no_failure_of_the_file(env: dict[str, str], home: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m deploy.setup.cli write kimi-code --dry-run | true', sys.executable],
        cwd=context.SHIM.parents[2],
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert config(home) == REAL
