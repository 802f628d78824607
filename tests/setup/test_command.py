"""The registered command: never exit status 2, never a byte on standard output, whatever is missing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.setup import blocks, context, trial
from deploy.setup.blocks import Call, Registration
from deploy.setup.errors import SetupError

PAYLOAD = json.dumps({"hook_event_name": "PreToolUse", "session_id": "s"}).encode()
NOBODY = 65534
ODD = [
    "a b",
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "back\\slash",
    "日本 é",
    "new\nline",
    "100%",
    "a;b&c|d",
    "-dash",
    "#",
]


def registration(folder: Path, url: str = "http://127.0.0.1:1/hook", token: str = "") -> Registration:
    """An installation of its own: a link to this interpreter and a copy of the shim."""
    folder.mkdir(parents=True, exist_ok=True)
    python, shim = folder / "python", folder / blocks.SHIM_NAME
    if not python.exists():
        python.symlink_to(os.path.realpath(sys.executable))
        for source in context.SHIM.parent.glob("*.py"):
            shutil.copy(source, folder)
    return Registration(str(python), str(shim), url, token, control=True, events=blocks.EVENTS_20)


def run(wanted: Registration, event: str, user: int | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", blocks.command(wanted, event)],
        input=PAYLOAD,
        capture_output=True,
        timeout=60,
        check=False,
        user=user,
    )


def silent(done: subprocess.CompletedProcess[bytes]) -> bool:
    return done.returncode == 0 and done.stdout == b""


EVENTS = ("PreToolUse", "PostToolUse", "UserPromptSubmit")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@pytest.mark.parametrize("event", EVENTS)
class TestSilent:
    def test_when_the_service_is_down(self, event: str, tmp_path: Path) -> None:
        assert silent(run(registration(tmp_path), event))

    def test_when_the_interpreter_is_gone(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        os.unlink(wanted.python)
        assert silent(run(wanted, event))

    def test_when_the_interpreter_is_a_dead_link(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        os.unlink(wanted.python)
        os.symlink("/nowhere/python", wanted.python)
        assert silent(run(wanted, event))

    def test_when_the_interpreter_is_no_program(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        os.unlink(wanted.python)
        Path(wanted.python).write_text("\x7fELF but not really")
        assert silent(run(wanted, event))
        os.chmod(wanted.python, 0o755)
        assert silent(run(wanted, event))

    def test_when_the_interpreter_has_lost_its_library(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path / "bin")
        os.unlink(wanted.python)
        shutil.copy(os.path.realpath(sys.executable), wanted.python)
        (tmp_path / "bin" / "pyvenv.cfg").write_text("home = /nowhere\n")
        assert silent(run(wanted, event))

    def test_when_the_shim_is_gone(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        os.unlink(wanted.shim)
        bare = blocks.command(wanted, event).removesuffix(" || exit 0")
        assert subprocess.run(["/bin/sh", "-c", bare], capture_output=True, check=False).returncode == 2
        assert silent(run(wanted, event))

    def test_when_anything_beside_the_shim_is_gone(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        for file in tmp_path.glob("*.py"):
            if str(file) != wanted.shim:
                file.unlink()
        assert silent(run(wanted, event))

    def test_when_the_shim_is_a_folder(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        os.unlink(wanted.shim)
        os.mkdir(wanted.shim)
        assert silent(run(wanted, event))

    def test_when_the_shim_is_half_written(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path)
        for file in tmp_path.glob("*.py"):
            source = file.read_bytes()
            for part in (0, 100, len(source) // 2, len(source) - 10):
                file.write_bytes(source[:part])
                assert silent(run(wanted, event))
            file.write_bytes(source)

    def test_when_the_whole_installation_is_gone(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path / "aep")
        shutil.rmtree(tmp_path / "aep")
        assert silent(run(wanted, event))

    def test_when_the_token_file_is_gone(self, event: str, tmp_path: Path) -> None:
        assert silent(run(registration(tmp_path, token=str(tmp_path / "no token")), event))

    @as_root
    def test_when_the_folder_is_unreadable(self, event: str, tmp_path: Path) -> None:
        wanted = registration(tmp_path / "aep")
        os.chmod(tmp_path / "aep", 0)
        assert silent(run(wanted, event, NOBODY))
        os.chmod(tmp_path / "aep", stat.S_IRWXU)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("event", EVENTS)
def test_a_path_may_hold_anything(name: str, event: str, tmp_path: Path) -> None:
    token = tmp_path / name / "token"
    wanted = registration(tmp_path / name, token=str(token))
    token.write_text("secret\n")
    text = tomllib.loads(f"c = {blocks.quote_toml(blocks.command(wanted, event))}")["c"]
    call = blocks.parse_command(text)
    assert call is not None
    assert (call.python, call.shim, call.token_file) == (wanted.python, wanted.shim, str(token))
    done = trial.run(text, call, 60)
    assert (done.code, done.stdout, done.delivered) == (0, b"", True)


@given(python=st.text(min_size=1), folder=st.text(), token=st.text(), event=st.sampled_from(blocks.EVENTS_20))
def test_a_command_is_read_back_as_it_was_made(python: str, folder: str, token: str, event: str) -> None:
    wanted = Registration(python, f"{folder}/{blocks.SHIM_NAME}", "http://[::1]:8398/hook", token)
    try:
        text = tomllib.loads(f"c = {blocks.quote_toml(blocks.command(wanted, event))}")["c"]
    except SetupError:
        return
    assert text == blocks.command(wanted, event)
    assert blocks.parse_command(text) == Call(
        python, wanted.shim, wanted.url, token, None, event in blocks.DETACHED
    )


@given(st.text())
def test_any_word_reaches_the_shell_as_it_is(word: str) -> None:
    assert shlex.split(blocks.quote_sh(word)) == [word]


def test_the_kinds_differ() -> None:
    wanted = Registration("/p", "/s/kimi_hook.py", "http://h:1/hook", control=True, events=blocks.EVENTS_20)
    hooks = {hook.event: hook for hook in blocks.hooks(wanted)}
    assert {event for event, hook in hooks.items() if "--detach" in hook.command} == {
        "PostToolUse",
        "PostToolUseFailure",
    }
    assert hooks["PreToolUse"].timeout == 60
    assert "--timeout 55000" in hooks["PreToolUse"].command
    assert {hook.timeout for event, hook in hooks.items() if event != "PreToolUse"} == {10}
    assert len(hooks) == 20


def test_without_control_no_tool_call_is_held() -> None:
    hook = blocks.hooks(Registration("/p", "/s/kimi_hook.py", "http://h:1/hook"))[0]
    assert (hook.event, hook.timeout) == ("PreToolUse", 10)
    assert hook.command == "'/p' -I -S '/s/kimi_hook.py' http://h:1/hook || exit 0"


def test_a_detached_shim_is_out_of_reach_before_the_interpreter_is_loaded() -> None:
    wanted = Registration("/p", "/s/kimi_hook.py", "http://h:1/hook", setsid="/usr/bin/setsid")
    text = blocks.command(wanted, "PostToolUse")
    assert text == (
        "trap '' TERM; '/usr/bin/setsid' '/p' -I -S '/s/kimi_hook.py' http://h:1/hook --detach || exit 0"
    )
    assert blocks.parse_command(text) == Call("/p", "/s/kimi_hook.py", "http://h:1/hook", detach=True)
    assert "setsid" not in blocks.command(wanted, "Stop")


def test_a_windows_command_is_quoted_for_cmd() -> None:
    wanted = Registration(
        r"C:\Program Files\py\python.exe",
        r"C:\aep's\kimi_hook.py",
        "http://h:1/hook",
        r"C:\t k",
        windows=True,
    )
    text = blocks.command(wanted, "PostToolUse")
    assert text == (
        r'"C:\Program Files\py\python.exe" -I -S "C:\aep' + r"'s\kimi_hook.py"
        r'" http://h:1/hook --detach --token-file "C:\t k" || exit 0'
    )
    assert blocks.parse_command(text) == Call(
        wanted.python, wanted.shim, wanted.url, wanted.token_file, None, True
    )
    with pytest.raises(SetupError, match="install aep-kimi in another folder"):
        blocks.quote_cmd(r"C:\100%\python.exe")


def test_a_path_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(SetupError, match="use another folder"):
        blocks.quote_toml(os.fsdecode(b"/caf\xe9/python"))


@pytest.mark.parametrize(
    ("given_url", "full"),
    [
        ("http://127.0.0.1:8398", "http://127.0.0.1:8398/hook"),
        ("http://127.0.0.1:8398/", "http://127.0.0.1:8398/hook"),
        ("http://127.0.0.1:8398/hook", "http://127.0.0.1:8398/hook"),
        ("http://127.0.0.1:8398/hook/", "http://127.0.0.1:8398/hook"),
        ("https://aep.example.org/team/", "https://aep.example.org/team/hook"),
        ("http://[::1]:8398", "http://[::1]:8398/hook"),
    ],
)
def test_an_address_is_a_base_or_whole(given_url: str, full: str) -> None:
    assert blocks.hook_url(given_url) == full
    assert blocks.base_url(full) + "/hook" == full


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8398",
        "ftp://h/hook",
        "http://",
        "http://h:99999",
        "http://h:x",
        "http://h:0",
        "http://user:pw@h",
        "http://h/hook?a=1",
        "http://h/#x",
        "http://h/a b",
        "http://h/'x'",
        "http://hé/",
        "http://h/\n",
    ],
)
def test_an_address_that_the_shim_cannot_use_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="; "):
        blocks.hook_url(url)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node /opt/aep/kimi-hook.js http://127.0.0.1:8398", True),
        ("/usr/local/bin/kimi-hook http://127.0.0.1:9000/hook", True),
        ("python3 '/x y/kimi_hook.py' http://h/hook", True),
        ("curl -s http://localhost:8398/hook -d @-", True),
        ("say done", False),
        ("tail my-kimi-hooks.log", False),
        ("curl http://localhost:83980/", False),
        ("'/p' -I -S '/s/kimi_hook.py' http://h:8398/hook || exit 0", False),
    ],
)
def test_an_observer_of_the_same_kind_is_noticed(text: str, found: bool) -> None:
    assert blocks.is_observer(text) is found
