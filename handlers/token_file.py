"""Changing the token file of a shared service: one writer at a time, whole or not at all, for its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from handlers.errors import SettingsError
from handlers.tokens import Principal, parse_tokens, token_digest

PREFIX = "aep_"
"""Begins every token we make, so that a scanner for leaked secrets can know one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the file."""

    digest: str
    principal: Principal

    @property
    def short(self) -> str:
        """How people name it: the begin of the digest, without its algorithm."""
        return self.digest.removeprefix("sha256:")[:12]


def grants(path: Path) -> list[Grant]:
    """What the file grants; nothing where it is not there yet. Raises SettingsError, OSError."""
    return [Grant(digest, found) for digest, found in parse_tokens(_read(path)).items()]


def add(
    path: Path,
    emitter: str,
    rights: str,
    *,
    rate: int | None = None,
    body: int | None = None,
    label: str = "",
) -> str:
    """Make a token and grant it; the token, which stands nowhere else.

    Raises OSError, and SettingsError that names what was given wrongly as the command line does.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    digest = token_digest(token)
    words = [digest, _word("EMITTER", [digest], emitter, "emit")]
    words.append(_word("--rights", words, rights))
    words += [] if rate is None else [_word("--rate", words, f"rate={rate}")]
    words += [] if body is None else [_word("--body", words, f"body={body}")]
    said = " ".join(label.split())
    line = " ".join([*words, said]).rstrip()
    # A label must not be read as a limit, nor a line of it as another grant.
    if [made.label for made in parse_tokens(line).values()] != [said]:
        raise SettingsError("--label", f"{label!r} cannot be a label")

    def change(text: str) -> str:
        return (text if not text or text.endswith("\n") else text + "\n") + line + "\n"

    _change(path, change)
    return token


def remove(path: Path, wanted: str) -> Grant:
    """Take one grant out, named by the begin of its digest or by its label. Raises SettingsError, OSError.

    Comments and the other lines stay as they are.
    """
    gone: list[Grant] = []

    def change(text: str) -> str:
        found = [
            Grant(digest, entry)
            for digest, entry in parse_tokens(text).items()
            if _named(digest, wanted) or entry.label == wanted
        ]
        if len(found) != 1:
            many = f"{len(found)} tokens are" if found else "no token is"
            raise SettingsError("token", f"{many} named {wanted!r}; 'aep-kimi token list' shows their ids")
        gone.append(found[0])
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if line.split(None, 1)[:1] != [found[0].digest])

    _change(path, change)
    return gone[0]


def _word(option: str, before: list[str], word: str, *after: str) -> str:
    """`word`, which is one and may stand there in a line."""
    if word.split() != [word]:
        raise SettingsError(option, f"expected one word, not {word!r}")
    try:
        parse_tokens(" ".join([*before, word, *after]))
    except SettingsError as error:
        raise SettingsError(option, error.problem.removeprefix("line 1: ")) from None
    return word


def _named(digest: str, wanted: str) -> bool:
    wanted = wanted.removeprefix("sha256:")
    return re.fullmatch(r"[0-9a-f]{6,64}", wanted) is not None and digest[7:].startswith(wanted)


def _change(path: Path, change: Callable[[str], str]) -> None:
    with _locked(path):
        text = _read(path)
        parse_tokens(text)
        made = change(text)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                _keep_access(path, file.fileno())
                file.write(made)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _keep_access(path: Path, descriptor: int) -> None:
    """Who could read the file still can, such as the group of a service that runs as another user."""
    try:
        known = path.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, 0o600)
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, known.st_uid, known.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(known.st_mode))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise SettingsError("AEP_TOKENS_FILE", f"{path} is not text") from None
