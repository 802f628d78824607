"""Every Redis key of this project, made in one place.

All keys of a session, and those of its shard that one script touches together, carry the shard's hash
tag, so they live in one slot of a cluster. `docs/state.md` has the list with lifetimes.

    {prefix}:layout                       string  layout version and number of shards; never expires
    {prefix}:{07}:s:{hash}:rec            hash    state, version, recent commits, top
    {prefix}:{07}:s:{hash}:evs            stream  replay, entry id = position
    {prefix}:{07}:s:{hash}:end            string  tombstone of an ended session
    {prefix}:{07}:s:{hash}:put:{name}     string  a recorded side value
    {prefix}:{07}:s:{hash}:src            zset    sources others posted for this session
    {prefix}:{07}:f:{hash}:evs|ids|low    zset, zset, string   foreign events, admitted ids, highest trimmed
    {prefix}:{07}:feed, :feed:n           stream, string       live feed and the number of its last entry
    {prefix}:{07}:index, :due, :foreign   zset    sessions by activity, by due time, foreign streams
    {prefix}:{07}:gates                   hash    gates that are held, by ticket
    {prefix}:{07}:claims[:{process}]      zset, hash   processes that hold claims, and the claims
    {prefix}:{07}:lease:{name}[:fence|:cursors]
    {prefix}:{07}:alive:{process}
    {prefix}:{07}:w:{hash}                hash    a connection of a link: last line taken, memory
"""

from __future__ import annotations

import hashlib
from binascii import crc_hqx
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import NamedTuple

SLOTS = 16384
AGENT = "kimi-code"
"""The agent of a session where nothing else is said."""
LAYOUT = 1
"""Version of the key layout; raised when a process must not work beside an older one."""


def slot(key: str) -> int:
    """The cluster slot of a key: CRC16 of the hash tag, or of the whole key where it has none."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


class SessionKey(NamedTuple):
    """Whose session: the emitter names the machine or tenant, the session id is the vendor's, verbatim.

    One session that two channels see under two agents is two sessions: each has its own state and counter.
    An agent is a short word of letters, digits and dashes. (A tuple, because every event looks one up.)
    """

    emitter: str
    session: str
    agent: str = AGENT

    @property
    def name(self) -> bytes:
        """One reversible byte string, a member of the shard's indexes.

        Length of emitter, emitter, session; before them the agent, where it is another than `AGENT`.
        """
        emitter = self.emitter.encode("utf-8", "surrogatepass")
        agent = b"" if self.agent == AGENT else self.agent.encode() + b"/"
        return b"%b%d:%b%b" % (agent, len(emitter), emitter, self.session.encode("utf-8", "surrogatepass"))

    @classmethod
    def parse(cls, name: bytes) -> SessionKey:
        """The inverse of `name`. Raises ValueError for anything else."""
        head, _, rest = name.partition(b":")
        agent, _, length = head.rpartition(b"/")
        cut = int(length)
        emitter, session = rest[:cut], rest[cut:]
        return cls(
            emitter.decode("utf-8", "surrogatepass"),
            session.decode("utf-8", "surrogatepass"),
            agent.decode() or AGENT,
        )

    @property
    def hash(self) -> str:
        """32 hex digits that stand for this session in key names, whatever characters its id has."""
        return hashlib.sha256(self.name).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """The keys of one session and of its shard, ready for a script call."""

    shard: int
    name: bytes
    base: str
    record: str
    events: str
    tombstone: str
    sources: str
    feed: str
    feed_number: str
    index: str
    due: str
    foreign: str
    gates: str

    def put(self, name: str) -> str:
        """Key of a recorded side value of this session."""
        return f"{self.base}:put:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The keys of one (session, source) stream of events that others posted."""

    events: str
    ids: str
    low: str


class Keys:
    """All keys under one prefix with a fixed number of shards.

    `prefix` may not hold braces (they would move the hash tag) nor be empty; `shards` is 1 to 4096.
    """

    def __init__(self, prefix: str = "aep", shards: int = 1) -> None:
        if not prefix or set(prefix) & set("{}*?[]\\ \n"):
            raise ValueError(f"a Redis prefix needs characters, but no braces, wildcards, spaces: {prefix!r}")
        if not 1 <= shards <= 4096:
            raise ValueError(f"the number of shards is 1 to 4096, not {shards}")
        self.prefix = prefix
        self.shards = shards
        self._tags = tuple(_tag(number, shards) for number in range(shards))
        self.session: Callable[[SessionKey], SessionKeys] = lru_cache(maxsize=16384)(self._session)

    @property
    def layout(self) -> str:
        """Where the layout version and the number of shards are recorded."""
        return f"{self.prefix}:layout"

    def shard_of(self, key: SessionKey) -> int:
        """Stable shard number of a session."""
        return int(key.hash[:8], 16) % self.shards

    def shard(self, number: int, what: str) -> str:
        """A key of a shard: `feed`, `feed:n`, `index`, `due`, `foreign` or `gates`."""
        return f"{self.prefix}:{{{self._tags[number]}}}:{what}"

    def lease(self, name: str) -> tuple[str, str, str]:
        """Lease, fence and cursors of one singleton job; all in one slot."""
        number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % self.shards
        base = self.shard(number, f"lease:{name}")
        return base, f"{base}:fence", f"{base}:cursors"

    def wire(self, emitter: str, link: str) -> str:
        """What is remembered of a link's connection."""
        both = SessionKey(emitter, link).name
        digest = hashlib.sha256(both).hexdigest()[:32]
        return self.shard(int(digest[:8], 16) % self.shards, f"w:{digest}")

    def alive(self, process: str) -> str:
        """Liveness key of one process."""
        return self.shard(0, f"alive:{process}")

    def foreign(self, key: SessionKey, source: str) -> ForeignKeys:
        """Keys of the events that `source` posted for a session."""
        keys = self.session(key)
        both = b"%d:%b%b" % (len(keys.name), keys.name, source.encode("utf-8", "surrogatepass"))
        base = self.shard(keys.shard, f"f:{hashlib.sha256(both).hexdigest()[:32]}")
        return ForeignKeys(events=f"{base}:evs", ids=f"{base}:ids", low=f"{base}:low")

    def _session(self, key: SessionKey) -> SessionKeys:
        name = key.name
        digest = hashlib.sha256(name).hexdigest()[:32]
        number = int(digest[:8], 16) % self.shards
        base = self.shard(number, f"s:{digest}")
        return SessionKeys(
            shard=number,
            name=name,
            base=base,
            record=f"{base}:rec",
            events=f"{base}:evs",
            tombstone=f"{base}:end",
            sources=f"{base}:src",
            feed=self.shard(number, "feed"),
            feed_number=self.shard(number, "feed:n"),
            index=self.shard(number, "index"),
            due=self.shard(number, "due"),
            foreign=self.shard(number, "foreign"),
            gates=self.shard(number, "gates"),
        )


@lru_cache(maxsize=8192)
def _tag(number: int, shards: int) -> str:
    """A tag for shard `number` whose slot lies in that shard's own share of the slots.

    Equal shares mean that nodes which split the slots evenly hold the shards evenly, too.
    """
    low, high = number * SLOTS // shards, (number + 1) * SLOTS // shards
    base = f"{number:02d}"
    names = [base]
    for name in names:  # grows while it is read: 07, 07a … 07z, 07aa …
        if low <= slot(name) < high:
            return name
        names.extend(name + letter for letter in ascii_lowercase)
    raise AssertionError("the names never end")
