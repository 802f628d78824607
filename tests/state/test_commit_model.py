"""The commit under every misfortune at once, against a model, on a real server.

Three replicas with clocks of their own write to two sessions. Replies get lost, requests arrive late,
replicas crash, scripts are flushed, the server is emptied or falls back to an older copy of its data.
Whatever happens:

- no two events ever stand at one position, and positions rise in the order of the stream;
- a commit is applied at most once, and what was answered as committed is there;
- the state is the fold of its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from state.connection import Client, Limits, connect
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Bounds, Committed, Conflict, Record, Sessions
from tests.servers import Copy, OwnServer
from tests.state.toy import Fold, reduce

T = TypeVar("T")

SESSIONS = [SessionKey("host", "one"), SessionKey("host", "two")]
START_MS = 10_000_000

replicas = st.integers(0, 2)
which = st.integers(0, 1)
sizes = st.integers(1, 4)


class Replica:
    """One process: its own writer id, its own guesses, its own clock."""

    def __init__(self, client: Client, keys: Keys, skew_ms: int) -> None:
        self.client = client
        self.keys = keys
        self.skew_ms = skew_ms
        self.reborn()

    def reborn(self) -> None:
        self.sessions = Sessions(self.client, self.keys, Bounds(buffer=10_000))
        self.guesses: dict[SessionKey, Record] = {}


class CommitMachine(RuleBasedStateMachine):
    """The world; `server` is set by the test."""

    server: OwnServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.keys = Keys("aep", self.server.shards)
        self.client = self.run(self._connect())
        self.now = START_MS
        self.inputs = 0
        self.world: list[Replica] = []
        self.late: list[Coroutine[Any, Any, Committed | Conflict]] = []
        self.backup: Copy | None = None
        self.ledger: dict[SessionKey, dict[int, bytes]] = {key: {} for key in SESSIONS}
        self.acknowledged: dict[SessionKey, set[bytes]] = {key: set() for key in SESSIONS}
        self.server.flush()

    async def _connect(self) -> Client:
        return connect(self.server.url, Limits(write=20, read=20, connect=20))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        for work in self.late:
            work.close()
        self.run(self.client.close())
        self.loop.close()

    @initialize(skews=st.lists(st.integers(-200, 200), min_size=3, max_size=3))
    def begin(self, skews: list[int]) -> None:
        self.world = [Replica(self.client, self.keys, skew) for skew in skews]

    # --- what replicas do ---

    def prepare(self, replica: Replica, key: SessionKey, size: int) -> tuple[Record, list[bytes]]:
        record = replica.guesses.get(key) or self.run(replica.sessions.load(key))
        bodies = [b"%d" % (self.inputs + n) for n in range(size)]
        self.inputs += size
        return record, bodies

    def attempt(
        self, replica: Replica, key: SessionKey, record: Record, bodies: list[bytes], name: str
    ) -> tuple[Coroutine[Any, Any, Committed | Conflict], Fold]:
        now = self.now + replica.skew_ms
        fold, events = reduce(record, bodies, now)
        return (
            replica.sessions.commit(
                key,
                expected=record.version,
                commit_id=name,
                state=fold.encode(),
                events=events,
                now_ms=now,
            ),
            fold,
        )

    def finish(self, replica: Replica, key: SessionKey, record: Record, bodies: list[bytes]) -> None:
        """Retry until it stands, as an engine does."""
        for _ in range(10):
            name = replica.sessions.commit_id()
            work, fold = self.attempt(replica, key, record, bodies, name)
            answer = self.run(work)
            if isinstance(answer, Committed):
                replica.guesses[key] = Record(fold.encode(), name, fold.last)
                self.acknowledged[key].update(bodies)
                return
            record = answer.record
        raise AssertionError("a commit that nobody competes with never came through")

    @rule(who=replicas, what=which, size=sizes, pass_ms=st.integers(0, 50))
    def commit(self, who: int, what: int, size: int, pass_ms: int) -> None:
        self.now += pass_ms
        replica, key = self.world[who], SESSIONS[what]
        record, bodies = self.prepare(replica, key, size)
        self.finish(replica, key, record, bodies)

    @rule(what=which, size=sizes, order=st.permutations(range(3)))
    def race(self, what: int, size: int, order: list[int]) -> None:
        """All three from what they believe, at the same time; one at most can be right."""
        key = SESSIONS[what]
        started = []
        for who in order:
            replica = self.world[who]
            record, bodies = self.prepare(replica, key, size)
            name = replica.sessions.commit_id()
            work, fold = self.attempt(replica, key, record, bodies, name)
            started.append((replica, bodies, name, fold, work))

        async def together() -> list[Committed | Conflict]:
            return await asyncio.gather(*(item[4] for item in started))

        answers = self.run(together())
        assert sum(isinstance(answer, Committed) for answer in answers) <= 1
        for (replica, bodies, name, fold, _), answer in zip(started, answers, strict=True):
            if isinstance(answer, Committed):
                replica.guesses[key] = Record(fold.encode(), name, fold.last)
                self.acknowledged[key].update(bodies)
            else:
                self.finish(replica, key, answer.record, bodies)

    @rule(who=replicas, what=which, size=sizes, others=st.lists(replicas, max_size=3), resend=st.booleans())
    def lose_reply(self, who: int, what: int, size: int, others: list[int], resend: bool) -> None:
        """Applied or not, the replica does not hear of it; it sends the same call again, or gives up."""
        replica, key = self.world[who], SESSIONS[what]
        record, bodies = self.prepare(replica, key, size)
        name = replica.sessions.commit_id()
        lost, fold = self.attempt(replica, key, record, bodies, name)
        applied = isinstance(self.run(lost), Committed)
        for other in others:
            if other != who:
                self.commit(other, what, 1, 1)
        if not resend:
            replica.guesses.pop(key, None)
            return
        again, _ = self.attempt(replica, key, record, bodies, name)
        answer = self.run(again)
        if applied:
            assert isinstance(answer, Committed)
            assert answer.again
        if isinstance(answer, Committed):
            replica.guesses[key] = Record(fold.encode(), name, fold.last)
            self.acknowledged[key].update(bodies)
        else:
            self.finish(replica, key, answer.record, bodies)

    @rule(who=replicas, what=which, size=sizes)
    def delay(self, who: int, what: int, size: int) -> None:
        """A request that is on its way while its sender has given up on it."""
        replica, key = self.world[who], SESSIONS[what]
        record, bodies = self.prepare(replica, key, size)
        work, _ = self.attempt(replica, key, record, bodies, replica.sessions.commit_id())
        self.late.append(work)

    @rule(pick=st.integers(0, 5))
    def arrive(self, pick: int) -> None:
        if self.late:
            self.run(self.late.pop(pick % len(self.late)))

    @rule(who=replicas)
    def crash(self, who: int) -> None:
        self.world[who].reborn()

    # --- what happens to the server ---

    @rule()
    def flush_scripts(self) -> None:
        self.server.run("SCRIPT", "FLUSH")

    @rule()
    def copy(self) -> None:
        """What another server holds by now, should this one be lost."""
        self.backup = self.server.copy()

    @rule()
    def lose_tail(self) -> None:
        if self.backup is not None:
            self._lose()
            self.server.restore(self.backup)

    @rule()
    def empty(self) -> None:
        self._lose()

    def _lose(self) -> None:
        # A failover or a restart takes longer than the clocks differ, and what was on its way is gone.
        self.server.flush()
        self.now += 2000
        for work in self.late:
            work.close()
        self.late.clear()
        for acknowledged in self.acknowledged.values():
            acknowledged.clear()

    # --- what must hold ---

    @invariant()
    def holds(self) -> None:
        for key in SESSIONS:
            page = self.run(Replay(self.client, self.keys).read(key, limit=10_000))
            record = self.run(Sessions(self.client, self.keys).load(key))
            ledger = self.ledger[key]
            highest = max(ledger, default=0)
            positions = [position for position, _ in page.entries]
            assert positions == sorted(set(positions))
            for position, body in page.entries:
                if position in ledger:
                    assert ledger[position] == body
                else:
                    assert position > highest
                ledger[position] = body
            bodies = [body for _, body in page.entries]
            assert len(bodies) == len(set(bodies)), "an input stands in the stream twice"
            assert self.acknowledged[key] <= set(bodies), "an answered commit is missing"
            fold = Fold()
            for position, body in page.entries:
                fold = fold.add(position, body)
            assert Fold.decode(record.state) == fold
            assert record.top == fold.last


def test_the_commit_keeps_its_promises(own_server: OwnServer) -> None:
    machine = type("Machine", (CommitMachine,), {"server": own_server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
