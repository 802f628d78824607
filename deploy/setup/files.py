"""Reading and replacing a file that must never be half: lock, backup, temporary file, fsync, rename.

A symbolic link is followed and kept; mode, owner and extended attributes go over to the new file and the
backup.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploy.setup.errors import SetupError

BACKUP = ".aep-backup-"
KEPT_BACKUPS = 5
_TEMPORARY = ".aep-tmp-"
_LOCK = ".aep-lock"
_NO_DIRECTORY_LOCK = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A file as it stood: `path` as named, `target` where links lead, `data` None if it does not exist."""

    path: Path
    target: Path
    data: bytes | None
    status: os.stat_result | None


def read(path: Path) -> Snapshot:
    """The file at `path`; raises SetupError for what is no readable regular file."""
    try:
        target = Path(os.path.realpath(path, strict=path.is_symlink()))
        status = os.stat(target)
    except FileNotFoundError:
        if path.is_symlink():
            raise SetupError(
                f"{path} is a link to {os.readlink(path)}, which does not exist; create that or remove it"
            ) from None
        return Snapshot(path, Path(os.path.realpath(path)), None, None)
    except OSError as error:
        raise _failed(path, "read", error) from None
    if not stat.S_ISREG(status.st_mode):
        raise SetupError(f"{path} is not a regular file; move it away, then run again")
    try:
        return Snapshot(path, target, target.read_bytes(), status)
    except OSError as error:
        raise _failed(path, "read", error) from None


def check_writable(snapshot: Snapshot) -> None:
    """Raise SetupError where the file or its folder is not meant to be written by this user."""
    folder = snapshot.target.parent
    if snapshot.status is not None:
        if not snapshot.status.st_mode & 0o222 or not os.access(snapshot.target, os.W_OK):
            raise SetupError(
                f"{snapshot.path} is read-only; make it writable (chmod u+w), or add the lines of "
                "`aep-setup write kimi-code --dry-run` where the file is made"
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SetupError(
                f"the folder {folder} is read-only; make it writable (chmod u+w), then run again"
            )


@contextmanager
def lock(snapshot_path: Path, wait_s: float = 10.0) -> Iterator[None]:
    """Keep a second `aep-setup` from writing the same file; raises SetupError when the wait is over.

    The folder of the real file is locked, so nothing is left behind; a lock file where a file system cannot.
    """
    folder = Path(os.path.realpath(snapshot_path)).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = _open_lock(folder, wait_s)
    except OSError as error:
        raise _failed(folder, "lock", error) from None
    try:
        _sweep(folder, snapshot_path)
        yield
    finally:
        os.close(handle)


def replace(snapshot: Snapshot, data: bytes | None) -> Path | None:
    """Put `data` in the place of the file (None deletes it), under `lock`. Returns the backup's path.

    Raises SetupError, the old file untouched, on any failure, and ChangedMeanwhile if somebody else wrote it.
    """
    try:
        backup = _back_up(snapshot) if snapshot.data is not None else None
        folder, name = snapshot.target.parent, snapshot.target.name
        temporary = _write(folder, name, data, snapshot) if data is not None else None
        try:
            if read(snapshot.path).data != snapshot.data:
                raise ChangedMeanwhile
            if temporary is None:
                os.unlink(snapshot.target)
            else:
                os.replace(temporary, snapshot.target)
                temporary = None
        finally:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
        _sync_folder(snapshot.target.parent)
    except OSError as error:
        raise _failed(snapshot.path, "write", error) from None
    _prune(snapshot.path)
    return backup


class ChangedMeanwhile(Exception):
    """Another program wrote the file between reading and replacing; read again."""


def last_backup(path: Path) -> datetime | None:
    """When the newest backup of `path` was made, which is when its hooks were last changed."""
    stamps = [name.partition(BACKUP)[2][:16] for name in _backups(path)]
    with suppress(ValueError):
        return datetime.strptime(max(stamps, default=""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return None


def _back_up(snapshot: Snapshot) -> Path:
    folder, name = snapshot.path.parent, snapshot.path.name
    temporary = _write(folder, name, snapshot.data or b"", snapshot)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        for number in range(1000):
            target = folder / f"{name}{BACKUP}{stamp}{f'-{number}' if number else ''}"
            if not target.exists():
                os.rename(temporary, target)
                return target
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    raise SetupError(f"{folder} is full of backups of this second; run again")


def _write(folder: Path, name: str, data: bytes, like: Snapshot) -> str:
    """A new file beside the old one, whole and on disk, with the mode and owner of `like`."""
    path = os.path.join(folder, f".{name}{_TEMPORARY}{secrets.token_hex(6)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        _dress(handle, folder, like)
        os.fsync(handle)
    except BaseException:
        os.close(handle)
        with suppress(OSError):
            os.unlink(path)
        raise
    os.close(handle)
    return path


def _dress(handle: int, folder: Path, like: Snapshot) -> None:
    """Owner first, then mode: the other way round would show the content to the wrong group for a moment."""
    if sys.platform == "win32":
        return
    if like.status is None:
        owner = os.stat(folder)
        if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
            os.fchown(handle, owner.st_uid, owner.st_gid)
        return
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (like.status.st_uid, like.status.st_gid):
        try:
            os.fchown(handle, like.status.st_uid, like.status.st_gid)
        except PermissionError:
            raise SetupError(
                f"{like.path} belongs to user {like.status.st_uid}, group {like.status.st_gid}, and you may "
                "not make files of theirs; run as that user"
            ) from None
    _copy_attributes(handle, like.target)
    os.fchmod(handle, stat.S_IMODE(like.status.st_mode))


def _copy_attributes(handle: int, source: Path) -> None:
    if sys.platform != "linux":
        return
    with suppress(OSError):
        for name in os.listxattr(source):
            with suppress(OSError):
                os.setxattr(handle, name, os.getxattr(source, name))


def _open_lock(folder: Path, wait_s: float) -> int:
    if sys.platform == "win32":
        return _poll(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), folder, wait_s)
    handle = os.open(folder, os.O_RDONLY)
    try:
        return _poll(handle, folder, wait_s)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCK:
            raise
    return _poll(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), folder, wait_s)


def _poll(handle: int, folder: Path, wait_s: float) -> int:
    end = time.monotonic() + wait_s
    try:
        while not _try_lock(handle):
            if time.monotonic() > end:
                raise SetupError(
                    f"another `aep-setup` is at work in {folder}; wait until it ends, then run again"
                )
            time.sleep(0.02)
    except BaseException:
        os.close(handle)
        raise
    return handle


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _sweep(folder: Path, path: Path) -> None:
    """Remove what a killed writer left; whoever holds the lock knows that nobody needs it."""
    leftover = tuple(f".{name}{_TEMPORARY}" for name in (path.name, os.path.basename(os.path.realpath(path))))
    for place in {folder, path.parent}:
        with suppress(OSError):
            for name in os.listdir(place):
                if name.startswith(leftover):
                    with suppress(OSError):
                        os.unlink(place / name)


def _backups(path: Path) -> list[str]:
    with suppress(OSError):
        return sorted(name for name in os.listdir(path.parent) if name.startswith(path.name + BACKUP))
    return []


def _prune(path: Path) -> None:
    """Keep the newest backups only: each holds the API keys of the config."""
    for name in _backups(path)[:-KEPT_BACKUPS]:
        with suppress(OSError):
            os.unlink(path.parent / name)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


_REMEDIES = {
    errno.ENOSPC: "free space on that disk, then run again",
    errno.EDQUOT: "free space in your quota, then run again",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), then run again",
    errno.EROFS: "that disk is read-only, so mount it writable or choose another --home",
    errno.EACCES: "run as the user who owns it or correct its permissions",
    errno.EPERM: "run as the user who owns it or correct its permissions and attributes (lsattr)",
    errno.ELOOP: "its links lead in a circle, so correct them",
    errno.ENOTDIR: "a part of this path is no folder, so correct it or choose another --home",
}


def _failed(path: Path, verb: str, error: OSError) -> SetupError:
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "correct that, then run again")
    return SetupError(f"cannot {verb} {path} ({reason}), nothing was changed; {remedy}")
