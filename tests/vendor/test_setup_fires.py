"""Hooks of `aep-setup` fire in the real binary, from a home and an installation with odd paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.model_server import ModelServer

from .install import Install
from .kimi import Kimi
from .recorder import Recorder
from .service import Service
from .tui import Tui

ROOT = Path(__file__).resolve().parents[2]
ODD = 'it\'s a "home" für 月'


@dataclass(frozen=True, slots=True)
class Setup:
    """An installation of aep-setup of its own, and a Kimi Code whose paths are as odd."""

    kimi: Kimi
    python: Path
    root: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [arguments[0], "kimi-code", *arguments[1:], "--kimi", str(self.kimi.install.kimi)]
        return subprocess.run(
            [self.python, "-m", "deploy.setup.cli", *words],
            cwd=self.root,
            env={**self.kimi.env(), "PYTHONPATH": sysconfig.get_path("purelib"), "AEP_EMITTER": "tests"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def done(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(params=["0.28.0", "2.x"])
def setup(request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer) -> Setup:
    install: Install = request.getfixturevalue("kimi_0_28" if request.param == "0.28.0" else "kimi_2")
    kimi = Kimi(install, tmp_path / ODD, model.url)
    root = tmp_path / ODD / "installation"
    shutil.copytree(ROOT / "deploy", root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    python = root / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    return Setup(kimi, python, root)


def test_hooks_fire_in_a_print_run(setup: Setup, recorder: Recorder) -> None:
    before = setup.kimi.config.read_bytes()
    said = setup.done("write", "--url", recorder.url, "--control")
    assert f"Kimi Code {setup.kimi.version}" in said
    printed = setup.kimi.run_print("MOCK:bash_ok")
    assert printed.code == 0, printed.stderr
    assert "Ignored invalid config" not in printed.stderr
    assert "hook_result" not in printed.stdout + printed.stderr
    wanted = ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"]
    wanted += ["TurnStarted"] if setup.kimi.v2 else ["SessionEnd"]
    assert recorder.wait(*wanted), recorder.events
    assert sorted(recorder.events) == sorted(wanted)
    setup.done("remove")
    assert setup.kimi.config.read_bytes() == before
    recorder.clear()
    assert setup.kimi.run_print("MOCK:plain").code == 0
    assert recorder.events == []


def test_hooks_fire_in_the_interactive_program(setup: Setup, recorder: Recorder) -> None:
    setup.done("write", "--url", recorder.url)
    with Tui(setup.kimi) as tui:
        tui.ready()
        tui.type("MOCK:bash_ok please")
        tui.wait("Run this command?")
        tui.press("1")
        tui.wait("The command printed mock-ok.")
        wanted = ["SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PermissionResult"]
        assert recorder.wait(*wanted, "PostToolUse", "Stop"), recorder.events
        said = setup.run("doctor")
        assert "ok    session: 1 running, all started with the hooks" in said.stdout, said.stdout
        tui.type("/exit")
        tui.wait_end()
    assert recorder.wait("SessionEnd")


def test_a_session_from_before_the_hooks_is_found(setup: Setup, recorder: Recorder) -> None:
    with Tui(setup.kimi) as tui:
        tui.ready()
        # the time of a write is told in whole seconds
        subprocess.run(["sleep", "2"], check=True)
        setup.done("write", "--url", recorder.url)
        said = setup.run("doctor")
        assert said.returncode == 1
        assert "WRONG session: kimi (process " in said.stdout
        assert "restart it, or type /reload in it" in said.stdout
        tui.type("/exit")
        tui.wait_end()
    assert "ok    session: none is running" in setup.run("doctor").stdout


def test_doctor_on_the_real_binary(setup: Setup, recorder: Recorder) -> None:
    setup.done("write", "--url", recorder.url)
    said = setup.run("doctor").stdout
    events = 20 if setup.kimi.v2 else 16
    assert f"@moonshot-ai/kimi-code {setup.kimi.version}" in said
    assert f"accepts {events} hook events" in said
    assert "ok    kimi doctor: Kimi Code itself accepts the file" in said
    assert "ok    command: delivers an event" in said
    assert "ok    command, detached: delivers an event" in said
    assert recorder.events == []
    with setup.kimi.config.open("a") as config:
        config.write("default_plan_mode = true\n")
    said = setup.run("doctor").stdout
    assert "WRONG hooks: " in said
    assert "the key `default_plan_mode`" in said
    assert "WRONG kimi doctor: Kimi Code refuses the file (hooks[" in said
    refused = setup.run("write", "--url", "http://127.0.0.1:1")
    assert refused.returncode == 1
    assert "`default_plan_mode` stands below the hooks of aep-setup" in refused.stderr
    setup.done("write", "--refence")
    assert setup.kimi.run(["doctor"]).code == 0


def test_the_legacy_flag_is_heeded_where_the_vendor_heeds_it(setup: Setup) -> None:
    """2.x has no legacy engine any more: it accepts the newer events whatever the flag says."""
    setup.kimi.extra_env["KIMI_CODE_LEGACY_FLAG"] = "1"
    said = setup.done("write", "--url", "http://127.0.0.1:1")
    assert f"accepts {20 if setup.kimi.v2 else 16} events" in said
    assert setup.kimi.run(["doctor"]).code == 0


def test_the_whole_installation_may_vanish(setup: Setup, recorder: Recorder) -> None:
    setup.done("write", "--url", recorder.url, "--control")
    shutil.rmtree(setup.root)
    printed = setup.kimi.run_print("MOCK:bash_ok")
    assert printed.code == 0, printed.stderr
    assert "The command printed mock-ok." in printed.stdout
    assert "hook_result" not in printed.stdout + printed.stderr
    assert recorder.events == []


def test_doctor_from_the_program_to_the_service(setup: Setup, service: Service) -> None:
    setup.done("write", "--url", service.url)
    printed = setup.kimi.run_print("MOCK:bash_ok")
    assert printed.session
    service.wait(printed.session, lambda events: any(e["type"] == "run.finished" for e in events))
    said = setup.done("doctor")
    assert "ok    token: none is needed" in said
    for event in ("session.started", "run.started", "tool.requested", "run.finished"):
        assert f"ok    last event: {event} at 20" in said
    assert said.endswith("nothing is wrong\n")
