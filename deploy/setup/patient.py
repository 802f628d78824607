"""What `doctor` looks at, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deploy.setup.context import Context
from deploy.setup.edit import Config

Verdict = Literal["ok", "wrong", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `wrong` needs the remedy that `text` ends with, `note` needs nothing."""

    verdict: Verdict
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Patient:
    """What was read once for all checks; `config` is None where there is none or it cannot be read."""

    context: Context
    data: bytes | None
    config: Config | None
    error: str
