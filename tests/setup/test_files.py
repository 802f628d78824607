"""Old file or new file, never half: killed writers, parallel writers, full disks, links, modes, owners."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.setup import cli, files
from deploy.setup.errors import SetupError
from tests.setup.shapes import REAL

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount or to become another user")
ROOT = Path(__file__).resolve().parents[2]


def aep_setup(
    *arguments: str, home: Path, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(*arguments, home=home),
        cwd=ROOT,
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def argv(*arguments: str, home: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "deploy.setup.cli",
        *arguments[:1],
        "kimi-code",
        *arguments[1:],
        "--home",
        str(home),
    ]


def write(home: Path, *arguments: str) -> int:
    return cli.main(["write", "kimi-code", "--home", str(home), *arguments], {"PATH": "/nowhere"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "config.toml").write_bytes(REAL)
    return folder


def left(home: Path) -> set[str]:
    """What is in the home beside the config and its backups."""
    return {p.name for p in home.iterdir() if p.name != "config.toml" and files.BACKUP not in p.name}


def backups(home: Path) -> list[Path]:
    return sorted(p for p in home.iterdir() if files.BACKUP in p.name)


def is_old_or_new(data: bytes) -> bool:
    new = (
        data.startswith(REAL)
        and data.endswith(b"# <<< aep-kimi hooks <<<\n")
        and data.count(b"[[hooks]]") == 16
    )
    return data == REAL or new


def test_the_backup_is_the_old_file(home: Path) -> None:
    assert write(home) == 0
    assert [b.read_bytes() for b in backups(home)] == [REAL]
    assert left(home) == set()


def test_nothing_is_written_when_nothing_changes(home: Path) -> None:
    assert write(home) == 0
    before = os.stat(home / "config.toml")
    assert write(home) == 0
    after = os.stat(home / "config.toml")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(backups(home)) == 1


def test_only_the_newest_backups_are_kept(home: Path) -> None:
    for port in range(8):
        assert write(home, "--url", f"http://127.0.0.1:{9000 + port}") == 0
    assert len(backups(home)) == files.KEPT_BACKUPS


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660])
def test_the_mode_is_kept_by_file_and_backup(home: Path, mode: int) -> None:
    os.chmod(home / "config.toml", mode)
    assert write(home) == 0
    for path in (home / "config.toml", *backups(home)):
        assert stat.S_IMODE(os.stat(path).st_mode) == mode


def test_no_file_is_wider_than_the_old_one_at_any_moment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chmod(home / "config.toml", 0o600)
    modes: list[int] = []
    real = os.write

    def spy(handle: int, data: bytes) -> int:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return real(handle, data)

    monkeypatch.setattr(os, "write", spy)
    old = os.umask(0)
    try:
        assert write(home) == 0
    finally:
        os.umask(old)
    assert set(modes) == {0o600}


@as_root
def test_the_owner_is_kept_by_file_and_backup(home: Path) -> None:
    os.chown(home / "config.toml", 12345, 23456)
    assert write(home) == 0
    for path in (home / "config.toml", *backups(home)):
        assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12345, 23456)


@as_root
def test_a_new_file_of_root_belongs_to_the_owner_of_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 23456)
    assert write(home) == 0
    status = os.stat(home / "config.toml")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o600)


def test_a_link_is_followed_and_kept(home: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    (home / "config.toml").rename(dotfiles / "kimi.toml")
    (dotfiles / "link").symlink_to("kimi.toml")
    (home / "config.toml").symlink_to("../dotfiles/link")
    assert write(home) == 0
    assert os.readlink(home / "config.toml") == "../dotfiles/link"
    assert os.readlink(dotfiles / "link") == "kimi.toml"
    assert is_old_or_new((dotfiles / "kimi.toml").read_bytes())
    assert (dotfiles / "kimi.toml").read_bytes() != REAL
    assert len(backups(home)) == 1
    assert sorted(p.name for p in dotfiles.iterdir()) == ["kimi.toml", "link"]
    assert cli.main(["remove", "kimi-code", "--home", str(home)], {}) == 0
    assert (dotfiles / "kimi.toml").read_bytes() == REAL


def test_a_home_behind_a_link(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    assert write(tmp_path / "link") == 0
    assert (home / "config.toml").read_bytes() != REAL


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.symlink_to("nowhere"), "create that or remove it"),
        (lambda p: p.symlink_to("config.toml"), "links lead in a circle"),
        (lambda p: p.mkdir(), "not a regular file; move it away"),
        (lambda p: os.mkfifo(p), "not a regular file; move it away"),
    ],
    ids=["dead link", "circular link", "folder", "pipe"],
)
def test_what_is_no_file_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], words: str
) -> None:
    (home / "config.toml").unlink()
    make(home / "config.toml")
    assert write(home) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_read_only_file_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(home / "config.toml", 0o444)
    assert write(home) == 1
    assert "is read-only; make it writable (chmod u+w)" in capsys.readouterr().err
    assert (home / "config.toml").read_bytes() == REAL
    assert backups(home) == []


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """Let everybody reach a folder below pytest's private one for a moment."""
    folders = [p for p in path.parents if p.is_relative_to("/tmp") and p != Path("/tmp")]
    modes = [stat.S_IMODE(os.stat(p).st_mode) for p in folders]
    for folder in folders:
        os.chmod(folder, 0o755)
    try:
        yield
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            os.chmod(folder, mode)


class ReadOnly:
    """As another user, in a child: modes mean nothing to root."""

    @staticmethod
    def run(home: Path) -> tuple[int, str]:
        with reachable(home / "x"):
            out, into = os.pipe()
            child = os.fork()
            if not child:
                sys.stderr = os.fdopen(into, "w")
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                code = write(home)
                sys.stderr.flush()
                os._exit(code)
            os.close(into)
            with os.fdopen(out) as said:
                text = said.read()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@as_root
def test_a_read_only_folder_is_refused(home: Path) -> None:
    os.chown(home / "config.toml", NOBODY, NOBODY)
    os.chmod(home, 0o555)
    code, said = ReadOnly.run(home)
    assert code == 1
    assert "is read-only; make it writable" in said
    assert (home / "config.toml").read_bytes() == REAL


@as_root
def test_a_file_of_another_user_is_refused(home: Path) -> None:
    os.chown(home, NOBODY, NOBODY)
    os.chown(home / "config.toml", 12345, 12345)
    os.chmod(home / "config.toml", 0o666)
    code, said = ReadOnly.run(home)
    assert code == 1
    assert "belongs to user 12345, group 12345" in said
    assert "run as that user" in said
    assert (home / "config.toml").read_bytes() == REAL
    assert left(home) == set()


@as_root
def test_an_unreadable_file_is_refused(home: Path) -> None:
    os.chown(home, NOBODY, NOBODY)
    os.chmod(home / "config.toml", 0o600)
    code, said = ReadOnly.run(home)
    assert code == 1
    assert "cannot read" in said
    assert "run as the user who owns it" in said


@as_root
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.parametrize("spare", [0, 4096])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spare: int
) -> None:
    home = tmp_path / "disk"
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", home], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        (home / "config.toml").write_bytes(REAL)
        with (home / "ballast").open("wb", buffering=0) as ballast:
            free = os.statvfs(home).f_bavail * os.statvfs(home).f_frsize
            ballast.write(b"x" * (free - spare))
        capfd.readouterr()
        assert write(home) == 1
        said = capfd.readouterr().err
        assert "no space left on device), nothing was changed; free space on that disk" in said
        assert said.count("\n") == 1
        assert (home / "config.toml").read_bytes() == REAL
        assert left(home) == {"ballast"}
        (home / "ballast").unlink()
        assert write(home) == 0
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_file_size_limit_leaves_the_old_file(home: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    done = aep_setup("write", home=home, before=limit)
    assert done.returncode == 1
    assert "raise the limit of file sizes (ulimit -f)" in done.stderr
    assert (home / "config.toml").read_bytes() == REAL
    assert left(home) == set()


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


def test_a_home_is_made_with_its_file(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    assert write(home) == 0
    assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(home / "config.toml").st_mode) == 0o600
    assert cli.main(["remove", "kimi-code", "--home", str(home)], {}) == 0
    assert not (home / "config.toml").exists()


def test_remove_makes_no_home(tmp_path: Path) -> None:
    assert cli.main(["remove", "kimi-code", "--home", str(tmp_path / "none")], {}) == 0
    assert not (tmp_path / "none").exists()
