"""What is handed to the engine together, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from handlers.aep.levels import JSONObject
from handlers.lifecycle.reducer import Command, Input
from state.sessions import Put, Record

Stored = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one submission.

    `replies` has the reducer's reply to every input, `{}` unless there is something to say. `stored` is `yes`
    when the events are in Redis, `no` when they certainly are not, `unknown` when a commit was sent and no
    answer came. `recorded` is the acknowledgement of a command that had been decided before; then nothing
    was reduced.
    """

    replies: tuple[JSONObject, ...]
    stored: Stored
    recorded: bytes | None = None

    @property
    def reply(self) -> JSONObject:
        """The reply to the first input."""
        return self.replies[0] if self.replies else {}


@dataclass(slots=True, eq=False)
class Submission:
    """Inputs that are reduced and committed together, in order, until `deadline` of the steady clock."""

    inputs: tuple[Input, ...]
    deadline: float
    puts: tuple[Put, ...] = ()
    future: asyncio.Future[Outcome] | None = None
    outcome: Outcome | None = None

    def settle(self, replies: Sequence[JSONObject], stored: Stored, recorded: bytes | None = None) -> None:
        """Say what became of it, to whoever waits."""
        self.outcome = Outcome(tuple(replies), stored, recorded)
        if self.future is not None and not self.future.done():
            self.future.set_result(self.outcome)

    def lose(self, stored: Stored) -> None:
        """Settle it without a word for anybody."""
        self.settle([{}] * len(self.inputs), stored)

    def recalled(self, taken: Mapping[str, bytes]) -> bool:
        """Settle a command that was decided before; whether it was."""
        for entry in self.inputs:
            if isinstance(entry.moment, Command):
                recorded = taken.get(ack_name(entry.moment.name))
                if recorded is not None:
                    self.settle([{}] * len(self.inputs), "yes", recorded)
                    return True
        return False


@dataclass(slots=True)
class Try:
    """Where a batch stands: `sent` while a commit of it may be applied without our knowing.

    `known` is where its session was just said to stand.
    """

    sent: bool = False
    unanswered: bool = False
    known: Record | None = None


def ack_name(name: str) -> str:
    """Under which side value the acknowledgement of the command `name` is recorded."""
    return f"ack:{name}"
