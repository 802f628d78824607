"""Every typed exception of the handlers."""

from __future__ import annotations


class HandlerError(Exception):
    """Base of the errors the handlers raise on purpose."""


class InvalidJSON(HandlerError, ValueError):
    """A text that JavaScript's `JSON.parse` refuses, or a value nested too deeply to carry."""


class InvalidFilter(HandlerError, ValueError):
    """A subscription filter outside the `attr-match` dialect (AEP-0003 §6.2: fail closed)."""


class SettingsError(HandlerError, ValueError):
    """An environment variable that cannot be understood; the message begins with its name."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable
        self.problem = problem


class Refused(HandlerError):
    """A request that is answered with an error status.

    `status` is the HTTP status, `code` a short word for programs, `detail` one sentence for people, `more`
    further members of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, **more: object) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more


class InvalidPosition(HandlerError, ValueError):
    """A `from` member that is not a list of positions nor the word `all` (AEP-0003 §6.5)."""


class TooManyPositions(HandlerError, ValueError):
    """More `from` positions than `AEP_MAX_FROM`."""


class InvalidState(HandlerError, ValueError):
    """Bytes that are not a session state, or one of another schema version."""


class NewerState(HandlerError):
    """A session state that a newer version has written: to be kept, not to be read."""


class FrameRefused(HandlerError):
    """A frame or command that is answered with an error frame, on a connection that lives on.

    `id` is that of the refused request, `cause` that of the refused event.
    """

    def __init__(self, code: str, detail: str, *, id: str | None = None, cause: str | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.id = id
        self.cause = cause


class InvalidEvent(HandlerError, ValueError):
    """An event that cannot be admitted; `code` is a short word for programs."""

    def __init__(self, detail: str, code: str = "invalid-event") -> None:
        super().__init__(detail)
        self.code = code
