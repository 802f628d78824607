"""What to do with a stored state whose schema is not ours, so that a rolling upgrade never misreads one.

- An older schema, or bytes that cannot be read: the session begins anew behind its last position, and stays
  ended where it had ended. Nothing that was emitted is contradicted.
- A newer schema: its bytes are kept as they are, because a replica that understands them lives. What a hook
  tells meanwhile becomes its fallback event, which claims nothing about runs, pairs or requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from handlers.aep.envelope import position
from handlers.errors import InvalidState, NewerState
from handlers.lifecycle.gates import Hold
from handlers.lifecycle.reducer import Input
from handlers.lifecycle.state import SCHEMA, SessionState
from handlers.lifecycle.writer import Emitted
from handlers.mapping.moments import Moment

_SCHEMA = re.compile(rb"\[\s*([0-9]{1,9})\s*[,\]]")

LOOK_AGAIN_MS = 1_000
"""When somebody who understands the state should look at it, after an event passed it by."""


def read(encoded: bytes, *, top: int, ended: bool) -> tuple[SessionState, bool]:
    """The state to go on from, and whether it is the stored one.

    `top` is the session's last position, `ended` whether it ever ended. Raises NewerState.
    """
    try:
        return SessionState.decode(encoded), True
    except InvalidState:
        found = _SCHEMA.match(encoded)
        if found is not None and int(found[1]) > SCHEMA:
            raise NewerState(f"a session state of schema {int(found[1])}; we read {SCHEMA}") from None
    return SessionState.tombstone(top) if ended else SessionState(last_seq=top), False


def pass_by(inputs: Sequence[Input], *, top: int, now_ms: int) -> tuple[Emitted, ...] | None:
    """The fallbacks of what was observed; None where something among `inputs` needs the state."""
    events: list[Emitted] = []
    last = top
    for given in inputs:
        moment = given.moment.moment if isinstance(given.moment, Hold) else given.moment
        if not isinstance(moment, Moment):
            return None
        last = position(last, now_ms)
        identity = given.mint.copy().next()
        events.append(Emitted(moment.fallback, identity, last, given.at_ms, None, None))
    return tuple(events)
