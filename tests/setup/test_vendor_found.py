"""Which Kimi Code is there, and which events it accepts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.setup import vendor
from deploy.setup.blocks import EVENTS_16, EVENTS_20
from deploy.setup.errors import SetupError
from tests.setup.fakes import fake_kimi

LEGACY, EXPERIMENTAL = {"KIMI_CODE_LEGACY_FLAG": "1"}, {"KIMI_CODE_EXPERIMENTAL_FLAG": "true"}


@pytest.mark.parametrize(
    ("version", "env", "engine", "events"),
    [
        ("", {}, "", EVENTS_16),
        ("what", {}, "", EVENTS_16),
        ("0.28.0", {}, "agent-core", EVENTS_16),
        ("0.28.0", EXPERIMENTAL, "agent-core-v2", EVENTS_16),
        ("0.31.1", {}, "agent-core", EVENTS_16),
        ("0.32.0", {}, "agent-core", EVENTS_16),
        ("0.32.0", EXPERIMENTAL, "agent-core-v2", EVENTS_20),
        ("0.33.0", {}, "agent-core-v2", EVENTS_20),
        ("0.33.0", LEGACY, "agent-core", EVENTS_16),
        ("0.38.0", LEGACY, "agent-core", EVENTS_16),
        ("0.38.0", {"KIMI_CODE_LEGACY_FLAG": "0"}, "agent-core-v2", EVENTS_20),
        ("0.43.1", LEGACY, "agent-core-v2", EVENTS_20),
        ("2.1.0", {}, "agent-core-v2", EVENTS_20),
        ("2.1.0-beta.1", {}, "agent-core-v2", EVENTS_20),
        ("v10.0.0", {}, "agent-core-v2", EVENTS_20),
    ],
)
def test_events_follow_version_and_engine(
    version: str, env: dict[str, str], engine: str, events: tuple[str, ...]
) -> None:
    assert vendor.engine(version, env) == engine
    assert vendor.events(version, env) == events


def test_an_npm_installation_is_the_vendors(tmp_path: Path) -> None:
    kimi = fake_kimi(tmp_path, "2.1.0")
    found = vendor.find(None, {"PATH": f"{kimi.parent}:/usr/bin:/bin"})
    assert (found.path, found.origin, found.version) == (str(kimi), "vendor", "2.1.0")


def test_the_unscoped_package_is_somebody_elses(tmp_path: Path) -> None:
    kimi = fake_kimi(tmp_path, "9.9.9", package="kimi-code")
    found = vendor.find(str(kimi), os.environ)
    assert (found.origin, found.package, found.version) == ("foreign", "kimi-code", "")


def test_a_program_that_does_not_tell_its_version_has_that_of_its_package(tmp_path: Path) -> None:
    kimi = fake_kimi(tmp_path, "0.28.0", says="kimi, version 1.12")
    assert vendor.find(str(kimi), os.environ).version == "0.28.0"


@pytest.mark.parametrize(
    ("text", "origin", "package"),
    [
        (
            "#!/bin/sh\nexec node /x/node_modules/@moonshot-ai/kimi-code/dist/main.mjs\n",
            "vendor",
            vendor.PACKAGE,
        ),
        ("#!/usr/bin/python3\nfrom kimi_cli import main\n", "foreign", "kimi_cli"),
        ("#!/bin/sh\nexec node /x/node_modules/kimi-code/cli.js\n", "foreign", "kimi-code"),
        ("\x7fELF...\0name:@moonshot-ai/kimi-code\0...", "vendor", vendor.PACKAGE),
        ("#!/bin/sh\necho hello\n", "unknown", ""),
        ("", "unknown", ""),
    ],
    ids=["start script", "kimi-cli", "start script of another", "single file", "unknown", "empty"],
)
def test_a_program_is_known_by_what_it_names(tmp_path: Path, text: str, origin: str, package: str) -> None:
    kimi = tmp_path / "kimi"
    kimi.write_text(text)
    kimi.chmod(0o755)
    assert vendor.identify(str(kimi))[:2] == (origin, package)


def test_a_start_script_leads_to_its_package(tmp_path: Path) -> None:
    main = fake_kimi(tmp_path, "2.0.3").resolve()
    script = tmp_path / "kimi"
    relative = os.path.relpath(main, tmp_path)
    script.write_text(f'#!/bin/sh\nbasedir=$(dirname "$0")\nexec node "$basedir/{relative}" "$@"\n')
    script.chmod(0o755)
    assert vendor.identify(str(script)) == ("vendor", vendor.PACKAGE, "2.0.3")


def test_no_kimi_is_said(tmp_path: Path) -> None:
    assert vendor.find(None, {"PATH": str(tmp_path)}).why == "no `kimi` is on PATH"
    with pytest.raises(SetupError, match="give --kimi the path of Kimi Code's `kimi`"):
        vendor.find(str(tmp_path / "kimi"), {"PATH": ""})


def test_further_programs_behind_the_first_are_found(tmp_path: Path) -> None:
    first, second = fake_kimi(tmp_path / "a", "2.1.0"), fake_kimi(tmp_path / "b", "0.28.0")
    env = {"PATH": f"{first.parent}:{second.parent}:{first.parent}"}
    assert vendor.others(vendor.find(None, env), env) == [str(second)]


def test_the_home_is_given_or_named_or_the_default(tmp_path: Path) -> None:
    env = {"HOME": "/h", "KIMI_CODE_HOME": "/k"}
    assert vendor.home("/g", env) == Path("/g")
    assert vendor.home(None, env) == Path("/k")
    assert vendor.home(None, {"HOME": "/h", "KIMI_CODE_HOME": " "}) == Path("/h/.kimi-code")
    assert vendor.home("~/x", env) == Path("/h/x")
    assert vendor.home("x", env) == Path.cwd() / "x"


def test_other_homes_are_found(tmp_path: Path) -> None:
    for name in (".kimi", ".kimi-code", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    env = {"HOME": str(tmp_path), "KIMI_CODE_HOME": str(tmp_path / "third")}
    assert vendor.other_homes(tmp_path / "third", env) == [tmp_path / ".kimi-code", tmp_path / ".kimi"]
    assert vendor.other_homes(tmp_path / ".kimi-code", env) == [tmp_path / "third", tmp_path / ".kimi"]
