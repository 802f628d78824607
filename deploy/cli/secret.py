"""The token that `serve` makes for the command line where no other is set: a file that only its owner reads.

It authenticates control and is needed for nothing else, so hooks go on without one.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

FILE = "control-token"


class SecretError(Exception):
    """The file cannot be used; the message is one sentence for people."""


def path() -> Path:
    """`control-token` in `AEP_DATA_DIR`, or in `$XDG_STATE_HOME/aep-kimi`, or `~/.local/state/aep-kimi`."""
    chosen = os.environ.get("AEP_DATA_DIR")
    if chosen:
        return Path(chosen) / FILE
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return base / "aep-kimi" / FILE


def make(where: Path) -> str:
    """The token in the file, which is made when it is not there. Raises SecretError."""
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return read(where)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            token = secrets.token_urlsafe(32)
            file.write(token + "\n")
        return token
    except OSError as error:
        raise SecretError(f"cannot write {where}: {error.strerror or error}") from None


def read(where: Path) -> str:
    """The token in the file. Raises SecretError for one that others may read, or that holds no token."""
    try:
        status = where.stat()
        text = where.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"cannot read {where}: {getattr(error, 'strerror', None) or error}") from None
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise SecretError(f"{where} can be read by others: chmod 600 it, or delete it and a new one is made")
    if not re.fullmatch(r"[\x21-\x7e]{8,512}", text):
        raise SecretError(f"{where} holds no token: delete it and a new one is made")
    return text


def found() -> str | None:
    """The token, where this user's service has made one."""
    try:
        return read(path())
    except SecretError:
        return None
