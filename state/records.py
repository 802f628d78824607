"""What a commit is made of, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from state.keys import SessionKey

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_EVENTS = 1000
"""Most events of one commit."""
MAX_STATE = 256 * 1024
"""Most bytes of a state; the reducer's own bound is lower."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept, and how long.

    `buffer` events per session (exact), `feed` commits per shard (exact). A replay stream lives `keep_ms`
    after its last commit at least, the state twice that, the tombstone of an ended session `tombstone_ms`.
    """

    buffer: int = 1000
    feed: int = 20_000
    keep_ms: int = 7 * DAY_MS
    tombstone_ms: int = 365 * DAY_MS

    def __post_init__(self) -> None:
        if self.buffer < 1 or self.feed < 1 or self.keep_ms < 1000 or self.tombstone_ms < 1000:
            raise ValueError("a buffer or feed holds at least one entry, and is kept at least a second")

    @property
    def renew_ms(self) -> int:
        """How often a busy session's lifetimes are written anew."""
        return min(HOUR_MS, self.keep_ms // 4)


@dataclass(frozen=True, slots=True)
class Record:
    """Where a session stands: `version` is `""` and `state` None when nothing is stored.

    `top` is the highest position ever committed that is still known, 0 for none. `ended` says that the
    session has ended before, which is remembered beyond the state.
    """

    state: bytes | None
    version: str
    top: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """A side value written with a commit, such as a recorded answer, for `keep_ms`.

    With `once`, a value that is there already refuses the whole commit and is reported in the conflict.
    """

    name: str
    value: bytes
    keep_ms: int
    once: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry of the shard's index of gates, written or (with no value) taken off by a commit.

    The whole index lives on for `keep_ms`, which is longer than any entry of it.
    """

    name: str
    value: bytes | None
    keep_ms: int = HOUR_MS


@dataclass(frozen=True, slots=True)
class Committed:
    """The step stands. `version` is to be expected next; `again` says it had been applied before."""

    version: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing was written: the session stands elsewhere, or a `once` put was there (`taken`)."""

    record: Record
    taken: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity:
    """A session in the index with the time of its last commit, Unix milliseconds."""

    key: SessionKey
    active_ms: int
