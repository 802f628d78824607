"""The files of a sink and the index that says what is in them.

A batch is appended and synced, file by file, and only then does the index learn of it. After a crash the
files may therefore hold more than the index knows: what is beyond is read, repaired and told to the index.
An event that comes again, from a replay or a retry, is known by its `(source, id)` and not written again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.sink.names import SUFFIX, part, path_of
from handlers.delivery import Item

INDEX = ".index.sqlite3"

_LONGEST_ID = 64
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
    number INTEGER PRIMARY KEY, source TEXT NOT NULL UNIQUE, session TEXT, epoch INTEGER, seq INTEGER,
    moved INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS seen (stream INTEGER, id BLOB, PRIMARY KEY (stream, id)) WITHOUT ROWID;
"""


class StoreError(Exception):
    """The folder cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A position of a session (AEP-0003 §7)."""

    session: str
    epoch: int
    seq: int


class Store:
    """One folder. At most one process may have it open. Not for concurrent use."""

    def __init__(self, root: Path, *, rotate: int) -> None:
        """Open `root`, make it where it is missing, and repair it; a file of `rotate` bytes is set aside."""
        self.root = root
        self.repaired = 0
        """Lines that a crash had torn."""
        self._rotate = rotate
        self._streams: dict[str, int] = {}
        self._moves = 0
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._index = sqlite3.connect(
                root / INDEX, timeout=0.5, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot use {root}: {error}") from None
        try:
            self._index.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._index.execute("PRAGMA journal_mode=WAL")
            self._index.execute("PRAGMA synchronous=NORMAL")
            self._index.executescript(_SCHEMA)
            self._index.execute("BEGIN IMMEDIATE")
            self._index.execute("COMMIT")
            self._moves = self._index.execute("SELECT coalesce(max(moved), 0) FROM streams").fetchone()[0]
            self._repair()
        except sqlite3.OperationalError as error:
            self._index.close()
            locked = "locked" in str(error)
            raise StoreError(
                f"{root} is in use by another sink" if locked else f"cannot use {root / INDEX}: {error}"
            ) from None
        except sqlite3.DatabaseError as error:
            self._index.close()
            raise StoreError(
                f"{root / INDEX} is damaged ({error}); take it away, and it is made anew from the files"
            ) from None

    def write(self, items: Sequence[Item]) -> int:
        """Append what is new of a batch and sync it; returns how many that were.

        Raises OSError when the disk will not have it; then nothing of the batch is in the index.
        """
        self._index.execute("BEGIN")
        try:
            fresh = [item for item in items if self._note(item)]
            grown: dict[str, list[bytes]] = {}
            for item in fresh:
                grown.setdefault(path_of(item.event), []).append(_line(item.body))
            sizes = {path: self._append(path, lines) for path, lines in grown.items()}
            self._remember(sizes)
            self._index.execute("COMMIT")
        except BaseException:
            self._index.execute("ROLLBACK")
            self._streams.clear()
            raise
        for path, size in sizes.items():
            if size >= self._rotate:
                self._set_aside(path, size)
        return len(fresh)

    def positions(self, limit: int) -> list[Resume]:
        """Where each session stands, those that moved last, for a source that cannot replay everything.

        Of streams that share a session's name the lowest counts: what comes again is known.
        """
        rows = self._index.execute(
            "SELECT session, epoch, seq, max(moved) OVER (PARTITION BY session) AS last FROM streams "
            "WHERE session IS NOT NULL AND seq IS NOT NULL ORDER BY last DESC, epoch, seq"
        )
        found: dict[str, Resume] = {}
        for session, epoch, seq, _ in rows:
            if session not in found and len(found) >= limit:
                break
            found.setdefault(session, Resume(session, epoch, seq))
        return list(found.values())

    def count(self) -> int:
        """How many events are held."""
        return int(self._index.execute("SELECT count(*) FROM seen").fetchone()[0])

    def close(self) -> None:
        """Let another one have the folder."""
        self._index.close()

    def _note(self, item: Item) -> bool:
        """Whether an event is new, and that it is here now."""
        source, identity = item.identity
        number = self._streams.get(source) or self._stream(source)
        key = identity.encode("utf-8", "surrogatepass")
        if len(key) > _LONGEST_ID:
            key = hashlib.sha256(key).digest()
        if self._index.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (number, key)).rowcount == 0:
            return False
        position, session = item.position, item.session
        if position is not None and session is not None and max(position) < 2**63:
            self._moves += 1
            epoch, seq = position
            self._index.execute(
                "UPDATE streams SET session = ?, moved = ?, epoch = ?, seq = ? WHERE number = ? "
                "AND (seq IS NULL OR (?, ?) > (epoch, seq))",
                (
                    session.encode("utf-8", "replace").decode(),
                    self._moves,
                    epoch,
                    seq,
                    number,
                    epoch,
                    seq,
                ),
            )
        return True

    def _stream(self, source: str) -> int:
        name = source.encode("utf-8", "replace").decode()
        self._index.execute("INSERT OR IGNORE INTO streams (source) VALUES (?)", (name,))
        found = self._index.execute("SELECT number FROM streams WHERE source = ?", (name,)).fetchone()
        if len(self._streams) > 100_000:
            self._streams.clear()
        self._streams[source] = int(found[0])
        return self._streams[source]

    def _append(self, path: str, lines: Iterable[bytes]) -> int:
        """Append and sync; the new size."""
        at = self.root / path
        new = not at.exists()
        if new:
            made = _missing(at.parent)
            at.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(at, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o640)
        try:
            _write(descriptor, b"".join(lines))
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if new:
            for directory in (at.parent, *(folder.parent for folder in made)):
                _sync_folder(directory)
        return size

    def _remember(self, sizes: dict[str, int]) -> None:
        self._index.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", sizes.items())

    def _set_aside(self, path: str, size: int) -> None:
        """The file is large enough: it becomes an older part."""
        number = 1
        while (self.root / part(path, number)).exists():
            number += 1
        older = part(path, number)
        os.rename(self.root / path, self.root / older)
        _sync_folder((self.root / path).parent)
        self._index.execute("BEGIN")
        self._remember({older: size})
        self._index.execute("DELETE FROM files WHERE path = ?", (path,))
        self._index.execute("COMMIT")

    def _repair(self) -> None:
        """Bring files and index together again."""
        known = dict(self._index.execute("SELECT path, size FROM files"))
        self._index.execute("BEGIN")
        for at in sorted(self.root.glob(f"*/*/*{SUFFIX}")):
            path, size = at.relative_to(self.root).as_posix(), at.stat().st_size
            counted = known.pop(path, 0)
            if size != counted:
                # A file that is shorter than it was is another one.
                self._remember({path: self._read_on(at, counted if size > counted else 0, ours=counted > 0)})
        self._index.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in known])
        self._index.execute("COMMIT")

    def _read_on(self, at: Path, start: int, *, ours: bool) -> int:
        """Take what a file holds from `start` on; the file's size after its repair.

        A last line that was torn is taken off. In a file that the index knows, so is what else is no event:
        blocks that never reached the disk read as zeros.
        """
        with open(at, "rb+") as file:
            file.seek(start)
            found = file.read()
            whole: list[bytes] = []
            same = 0
            for number, line in enumerate(found.split(b"\n")):
                item = read(line)
                if item is not None:
                    whole.append(line + b"\n")
                    self._note(item)
                elif line:
                    torn = found.endswith(line)
                    self.repaired += torn or ours
                    if not torn and not ours:
                        whole.append(line + b"\n")
                if len(whole) == number + 1:
                    same += len(line) + 1
            kept = b"".join(whole)
            if kept != found:
                # What stays is not touched where that can be helped: this may be interrupted, too.
                same = min(same, len(found))
                file.truncate(start + same)
                file.seek(start + same)
                file.write(kept[same:])
                file.flush()
                os.fsync(file.fileno())
            return start + len(kept)


def read(body: bytes) -> Item | None:
    """An event, or None for what is none that can be kept."""
    try:
        item = Item.parse("foreign", body)
    except ValueError:
        return None
    event = item.event
    named = all(isinstance(event.get(name), str) for name in ("source", "id", "type"))
    return item if named else None


def _line(body: bytes) -> bytes:
    # Between the tokens of a JSON text a line break is a blank.
    return body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _missing(folder: Path) -> list[Path]:
    found = []
    while not folder.exists():
        found.append(folder)
        folder = folder.parent
    return found


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
