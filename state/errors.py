"""Everything `state` raises, sorted by what a caller may conclude about the write it asked for."""

from __future__ import annotations


class StateError(Exception):
    """Base of all errors of this package."""


class Unreachable(StateError):
    """The call never left this process: nothing was written."""


class Unanswered(StateError):
    """The call was sent and no reply came: it may or may not have been applied.

    Repeating a commit with the same commit id is safe and tells which of the two it was.
    """


class Refused(StateError):
    """The server answered with an error before it wrote anything (out of memory, read-only, loading, …)."""


class NotReplicated(StateError):
    """The write stands at the primary, but fewer replicas than asked for have confirmed it.

    `reply` is what the primary answered.
    """

    def __init__(self, message: str, reply: object = None) -> None:
        super().__init__(message)
        self.reply = reply


class LayoutMismatch(StateError):
    """The prefix was laid out by a process with another number of shards or another layout version."""


class LeaseLost(StateError):
    """Somebody else holds the lease, or it ran out: what was asked for was not done."""


class EmbeddedFailed(StateError):
    """No private server could be started; the message says why and where its log is."""


class UnsafeServer(StateError):
    """The server may throw state away by itself (an eviction policy that takes any key)."""
