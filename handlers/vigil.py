"""The watch over the gates of the whole deployment: who lives, what was missed, what the dead have left.

Every process says that it lives, compares its holds with the index of gates once a second, closes what it
could not close while Redis was away, and closes the gates of processes that have been silent for too long.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine
from handlers.held import Held, HeldBook
from handlers.lifecycle.gates import Close, Opened
from handlers.limit import Limit
from state.errors import StateError
from state.gates import Gates, Waiting
from state.keys import Keys, SessionKey
from state.leases import Leases

log = logging.getLogger(__name__)

BEAT_TTL_MS = 4_000
"""How long a process counts as living after it has last said so."""
LOOK_SECONDS = 1.0
DOUBT_SECONDS = 2.0
"""How long a holder must be silent beyond that, so that a Redis which was away accuses nobody."""
CLOSE_SECONDS = 0.5
"""How long one attempt to close a gate may take while an agent waits for it."""
PATIENT_SECONDS = 2.0
"""The same where nobody waits."""
_MOST_DEBTS = 10_000
_TOGETHER = 50
_SWEPT_AT_ONCE = 2_000


@dataclass(slots=True)
class _Debt:
    """A gate of ours that is let go, and not closed in Redis yet."""

    key: SessionKey
    opened: Opened | None


class Vigil:
    """Looks after gates. `running` says whether it does so by itself, once a second."""

    def __init__(
        self,
        book: HeldBook,
        gates: Gates,
        leases: Leases,
        engine: Engine,
        keys: Keys,
        *,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self.running = False
        self._book = book
        self._gates = gates
        self._leases = leases
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._counters = counters
        self._debts: dict[str, _Debt] = {}
        self._suspects: dict[str, float] = {}
        self._soon = asyncio.Event()
        self._beaten = 0.0

    @property
    def holder(self) -> str:
        """The name of this process, with which its tickets begin."""
        return self._leases.holder

    @property
    def doubts(self) -> bool:
        """Whether some holder seems to be dead, which another look may confirm."""
        return bool(self._suspects)

    @property
    def debts(self) -> int:
        """How many gates of ours are let go, and not closed in Redis yet."""
        return len(self._debts)

    def look_soon(self) -> None:
        """The feed may have missed something."""
        self._soon.set()

    def owe(self, held: Held) -> None:
        """Its gate is to be closed, as soon as that is possible."""
        if len(self._debts) < _MOST_DEBTS:
            self._debts[held.ticket] = _Debt(held.key, held.opened)
        else:
            self._counters.add("gates.unclosed")

    async def beat(self) -> None:
        """Say that this process lives."""
        self._beaten = self._clock.steady()
        try:
            await self._leases.beat(BEAT_TTL_MS)
        except StateError as error:
            log.debug("this process could not say that it lives: %s", error)

    async def _stay(self) -> None:
        """Say so again where a look takes long."""
        if self._clock.steady() - self._beaten > LOOK_SECONDS:
            await self.beat()

    async def run(self) -> None:
        """Look every second until cancelled."""
        self.running = True
        try:
            while True:
                try:
                    await self.look()
                except StateError as error:
                    log.debug("gates could not be looked at: %s", error)
                    self._suspects.clear()
                except Exception:
                    log.exception("looking after gates failed")
                    self._counters.add("gates.failed")
                try:
                    with Limit(LOOK_SECONDS * (0.75 + random.random() / 2)):
                        await self._soon.wait()
                except TimeoutError:
                    continue
                self._soon.clear()
        finally:
            self.running = False

    async def look(self) -> None:
        """Say that we live, compare our holds with the index, close what the dead have left.

        Raises StateError.
        """
        await self.beat()
        await self._pay()
        others: dict[str, dict[str, Waiting]] = {}
        # What is held from now on may be missing in what is read.
        mine = {held.ticket: held for held in self._book if held.opened is not None}
        for shard in range(self._keys.shards):
            async for page in self._gates.waiting(shard):
                for entry in page:
                    holder = entry.holder
                    if holder != self.holder:
                        others.setdefault(holder, {})[entry.ticket] = entry
                        continue
                    known = self._book.get(entry.ticket)
                    if known is None:
                        self._debts.setdefault(entry.ticket, _Debt(entry.key, None))
                    elif entry.decided:
                        known.wake()
                    mine.pop(entry.ticket, None)
        for held in mine.values():
            held.wake()
        await self._bury(others)

    async def _pay(self) -> None:
        """Close in Redis what was let go while Redis was away."""
        owed = list(self._debts.items())
        for start in range(0, len(owed), _TOGETHER):
            group = owed[start : start + _TOGETHER]
            paid = await asyncio.gather(
                *(self._withdraw(debt.key, ticket, debt.opened) for ticket, debt in group)
            )
            for (ticket, _), done in zip(group, paid, strict=True):
                if done:
                    self._debts.pop(ticket, None)
            if not all(paid):
                return
            await self._stay()

    async def _bury(self, others: dict[str, dict[str, Waiting]]) -> None:
        """Close the gates of processes that have been silent for long enough."""
        now = self._clock.steady()
        for holder in self._suspects.keys() - others.keys():
            del self._suspects[holder]
        for holder, found in others.items():
            if await self._leases.lives(holder):
                self._suspects.pop(holder, None)
                continue
            if now - self._suspects.setdefault(holder, now) < DOUBT_SECONDS:
                continue
            entries = list(found.values())[:_SWEPT_AT_ONCE]
            for start in range(0, len(entries), _TOGETHER):
                group = entries[start : start + _TOGETHER]
                swept = await asyncio.gather(
                    *(self._withdraw(entry.key, entry.ticket, None) for entry in group)
                )
                self._counters.add("gates.swept", sum(swept))
                await self._stay()

    async def _withdraw(self, key: SessionKey, ticket: str, opened: Opened | None) -> bool:
        """Close a gate that nobody holds; whether it is closed for certain."""
        outcome = await self._engine.submit(
            key,
            Close(ticket, "withdrawn", opened),
            at_ms=self._clock.now_ms(),
            deadline=self._clock.steady() + PATIENT_SECONDS,
        )
        return outcome.stored == "yes"
