"""What stops `aep-setup`: always one sentence that says what to do."""

from __future__ import annotations


class SetupError(Exception):
    """Nothing was changed; the message is one sentence with its remedy."""


class Unreadable(SetupError):
    """The text is not TOML; `line` (from 1) is where it goes wrong, 0 where that is not known."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}" if line else what)
        self.line = line
        self.what = what
