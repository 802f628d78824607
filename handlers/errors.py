"""Every exception that handlers raise on purpose."""

from __future__ import annotations


class AepKimiError(Exception):
    """Base of the errors below."""


class SettingsError(AepKimiError, ValueError):
    """An environment variable that cannot be understood; the message begins with its name."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable
        self.problem = problem


class Refused(AepKimiError):
    """A request that is answered with an error status.

    `status` is the HTTP status, `code` a short word for programs, `detail` one sentence for people.
    """

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Unstored(AepKimiError):
    """A commit that was not applied, or that may have been: `outcome` is `no` or `unknown`."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(f"{outcome}: {reason}")
        self.outcome = outcome
        self.reason = reason


class InvalidPosition(AepKimiError, ValueError):
    """A `from` member that is not a list of positions nor the word `all` (AEP-0003 §6.5)."""


class TooManyPositions(AepKimiError, ValueError):
    """More `from` positions than `AEP_MAX_FROM`."""
