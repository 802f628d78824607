"""Numbered streams: what a link sends again is taken once.

Links deliver at least once. Each moment carries its place in a stream of the vendor's or the link's, and
the state remembers how far every stream was taken: in the same commit as the events, so that the two are
kept, lost and rolled back together. No other store of cursors exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from handlers.lifecycle.bounds import CURSORS
from handlers.lifecycle.names import clip, key
from handlers.lifecycle.state import SessionState, forget

if TYPE_CHECKING:
    from handlers.lifecycle.reducer import Happening


_STAMP = 40


@dataclass(frozen=True, slots=True)
class Placed:
    """`moment` as number `number` of the stream `scope`; a `Tick` only moves the cursor.

    A scope is the channel and what numbers its moments anew: `web.{epoch}` of a `kimi web` journal,
    `acp.{connection}` of a tee. Numbers rise within a session and scope; gaps are legal. `stamp` tells a
    moment of that number from another one, where the vendor may give a number twice.
    """

    moment: Happening
    scope: str
    number: int
    stamp: str | None = None


def admit(state: SessionState, placed: Placed) -> bool:
    """Move the cursor to `placed`; False where it stands there or beyond, and nothing is to be done."""
    scope = key(placed.scope)
    if scope is None:
        return True
    last = state.cursors.pop(scope, -1)
    state.cursors[scope] = max(last, placed.number)
    forget(state.cursors, CURSORS)
    if placed.number <= last:
        return False
    if placed.stamp is not None:
        state.web.stamp = placed.stamp if clip(placed.stamp, _STAMP) == placed.stamp else ""
    return True


def latest(state: SessionState, channel: str) -> tuple[str, int] | None:
    """The stream of a channel that moved last: its scope without the channel, and the last number taken."""
    for scope in reversed(state.cursors):
        name, _, rest = scope.partition(".")
        if name == channel and rest:
            return rest, state.cursors[scope]
    return None
