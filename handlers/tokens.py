"""Who holds which token: rights, grants, and the token file of a shared service.

The file has one grant a line, `sha256:{64 hex digits} {emitter} {right[,right…]} [rate=N] [body=N] [label]`:
`rate` is in events per second, `body` the largest request body in bytes. Blank lines and
lines that begin with `#` are skipped. It holds digests, never tokens, and is read again when it changes.
What a token watches and commands is what its emitter's tokens handed in, unless it has the right `all`.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from enum import StrEnum

from handlers.errors import SettingsError

_NAME = len("sha256:") + 12
_EMITTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Right(StrEnum):
    """What a token allows. `steer` includes `answer`.

    Everything reaches the sessions of the token's own emitter; with `all`, watching and commanding reach
    those of every emitter.
    """

    EMIT = "emit"
    WATCH = "watch"
    ANSWER = "answer"
    STEER = "steer"
    ALL = "all"


ALL_RIGHTS = frozenset(Right)
OPEN_RIGHTS = frozenset({Right.EMIT, Right.WATCH, Right.ALL})
OWNER_LABEL = "AEP_TOKEN"
"""The label of the one who holds the service's own token: nobody in particular."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request speaks for. Control needs `authenticated` (AEP-0004 §4.1)."""

    emitter: str
    rights: frozenset[Right]
    authenticated: bool
    label: str = ""
    name: str = ""
    """Tells tokens apart in counts and logs without telling them: the begin of the digest."""
    rate: int | None = None
    """Events per second, 0 for no limit, None for the service's own."""
    body: int | None = None
    """The largest request body in bytes; None for the service's own."""

    @property
    def scope(self) -> str | None:
        """The one emitter whose sessions this principal may see and command; None for those of all."""
        return None if Right.ALL in self.rights else self.emitter

    def may(self, right: Right) -> bool:
        return right in self.rights or (right is Right.ANSWER and Right.STEER in self.rights)


def token_digest(token: str) -> str:
    """The form in which a token stands in the file: `sha256:` and 64 hex digits."""
    return _digest(token.encode())


def _digest(token: bytes) -> str:
    return "sha256:" + hashlib.sha256(token).hexdigest()


def parse_tokens(text: str, variable: str = "AEP_TOKENS_FILE") -> dict[str, Principal]:
    """Digest → principal. Raises `SettingsError` naming the line that is wrong."""
    grants: dict[str, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split(None, 3)
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) < 3 or not re.fullmatch(r"sha256:[0-9a-f]{64}", parts[0]):
            raise SettingsError(variable, f"line {number}: expected 'sha256:DIGEST EMITTER RIGHTS [LABEL]'")
        if not _EMITTER.fullmatch(parts[1]):
            raise SettingsError(variable, f"line {number}: {parts[1]!r} cannot be an emitter's name")
        try:
            rights = frozenset(Right(word) for word in parts[2].split(","))
        except ValueError:
            known = ", ".join(Right)
            raise SettingsError(variable, f"line {number}: rights are {known}, not {parts[2]!r}") from None
        limits, label = _limits(parts[3] if len(parts) > 3 else "")
        for name, value in limits.items():
            if not re.fullmatch(r"[0-9]{1,9}", value):
                raise SettingsError(variable, f"line {number}: {name} is a number, not {value!r}")
        grants[parts[0]] = Principal(
            parts[1],
            rights,
            True,
            label,
            name=parts[0][:_NAME],
            **{name: int(value) for name, value in limits.items()},
        )
    return grants


def _limits(text: str) -> tuple[dict[str, str], str]:
    """The limits at the begin of what follows the rights, and the label behind them."""
    limits: dict[str, str] = {}
    while (match := re.match(r"\s*(rate|body)=(\S*)", text)) is not None:
        limits[match[1]] = match[2]
        text = text[match.end() :]
    return limits, text.strip()


class TokenFile:
    """The grants of one file, read again when its time or size changes.

    A file that becomes unreadable or wrong keeps the last good grants; `problem` says what is the matter.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: str | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._grants: dict[str, Principal] = {}
        self.refresh()
        if self.problem is not None:
            raise SettingsError("AEP_TOKENS_FILE", self.problem)

    def refresh(self) -> None:
        """Read the file if it has changed since the last call."""
        try:
            status = os.stat(self.path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            with open(self.path, encoding="utf-8") as file:
                self._grants = parse_tokens(file.read())
            self._stamp = stamp
            self.problem = None
        except SettingsError as error:
            self.problem = error.problem
        except (OSError, UnicodeDecodeError) as error:
            self.problem = f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}"

    def find(self, token: bytes) -> Principal | None:
        """The principal of a presented token. The look-up is by digest, so it tells nothing by its time."""
        return self._grants.get(_digest(token))

    def grants(self, principal: Principal) -> bool:
        """Whether the file still says of this principal what it said when it was let in."""
        return principal in self._grants.values()

    def emitters(self) -> frozenset[str]:
        """Every emitter that some token speaks for."""
        return frozenset(grant.emitter for grant in self._grants.values())
