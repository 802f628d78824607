"""Links, modes, owners, full disks: what is written is as it was, or is not written."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.setup import cli, files
from tests.setup.shapes import REAL
from tests.setup.written import aep_setup, backups, is_old_or_new, left, write

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount or to become another user")


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
