"""Old file or new file, never half: killed writers, and parallel ones."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.setup import files
from deploy.setup.errors import SetupError
from tests.setup.shapes import REAL
from tests.setup.written import ROOT, aep_setup, argv, backups, is_old_or_new, left, write

STEPS = ("open", "write", "fsync", "fchmod", "fchown", "rename", "replace", "unlink", "close", "mkdir")


def _child(home: Path, stop: int | None) -> int:
    """`write` in a child that kills itself before step `stop`; the steps it did, -1 if it was killed."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        steps = 0

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def step(*arguments: object, **options: object) -> object:
                nonlocal steps
                if steps == stop:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                return real(*arguments, **options)

            return step

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        write(home)
        with os.fdopen(into, "w") as report:
            report.write(str(steps))
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as said:
        text = said.read()
    os.waitpid(child, 0)
    return int(text or -1)


def test_a_kill_before_any_step_leaves_the_old_or_the_new_file(home: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(home, whole)
    steps = _child(whole, None)
    assert steps > 10
    seen = set()
    for stop in range(steps):
        place = tmp_path / f"stop{stop}"
        shutil.copytree(home, place)
        if _child(place, stop) != -1:
            continue
        data = (place / "config.toml").read_bytes()
        assert is_old_or_new(data), stop
        assert all(b.read_bytes() == REAL for b in backups(place))
        seen.add(data == REAL)
        assert write(place) == 0
        assert is_old_or_new((place / "config.toml").read_bytes())
        assert left(place) == set()
    assert seen == {True, False}


@pytest.mark.slow
def test_kills_at_random_moments_leave_the_old_or_the_new_file(home: Path) -> None:
    """60 processes, each killed somewhere in its life; the file changes its address with each."""
    chance = random.Random(3)
    start = time.monotonic()
    assert aep_setup("write", home=home).returncode == 0
    life = time.monotonic() - start
    for number in range(60):
        process = subprocess.Popen(
            argv("write", "--url", f"http://127.0.0.1:{number + 1}", home=home),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.3, 1.1) * life)
        process.kill()
        process.wait(10)
        assert is_old_or_new((home / "config.toml").read_bytes())
    assert aep_setup("write", home=home).returncode == 0
    assert left(home) == set()
    assert aep_setup("remove", home=home).returncode == 0
    assert (home / "config.toml").read_bytes() == REAL


def test_writers_in_parallel_make_one_fence(home: Path) -> None:
    writers = [
        subprocess.Popen(
            argv("write", "--url", f"http://127.0.0.1:{port}", home=home),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for port in range(9001, 9007)
    ]
    said = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 6, said
    assert is_old_or_new((home / "config.toml").read_bytes())
    assert (home / "config.toml").read_bytes() != REAL
    assert left(home) == set()


def test_a_second_writer_waits_and_then_says_what_to_do(home: Path) -> None:
    config = home / "config.toml"
    with (
        files.lock(config),
        pytest.raises(
            SetupError, match=r"another `aep-setup` is at work in .*; wait until it ends, then run again"
        ),
        files.lock(config, wait_s=0.05),
    ):
        pass
    with files.lock(config, wait_s=0.05):
        pass


def test_a_file_system_that_cannot_lock_a_folder_gets_a_lock_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(handle: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "no folder locks here")
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    config = home / "config.toml"
    with files.lock(config), pytest.raises(SetupError), files.lock(config, wait_s=0.05):
        pass
    assert write(home) == 0


def test_a_file_that_changes_meanwhile_is_read_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = home / "config.toml"
    real = files._back_up
    changes = iter([b"a = 1\n", b"a = 2\n"])

    def back_up(snapshot: files.Snapshot) -> Path:
        made = real(snapshot)
        if (change := next(changes, None)) is not None:
            config.write_bytes(change)
        return made

    monkeypatch.setattr(files, "_back_up", back_up)
    assert write(home) == 0
    assert config.read_bytes().startswith(b"a = 2\n# >>> aep-kimi")
    assert left(home) == set()


def test_a_file_that_never_rests_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = home / "config.toml"
    real = files._back_up
    numbers = iter(range(1000))

    def back_up(snapshot: files.Snapshot) -> Path:
        config.write_text(f"a = {next(numbers)}\n")
        return real(snapshot)

    monkeypatch.setattr(files, "_back_up", back_up)
    assert write(home) == 1
    assert "close Kimi Code's settings, then run again" in capsys.readouterr().err
    assert b"aep-kimi" not in config.read_bytes()
