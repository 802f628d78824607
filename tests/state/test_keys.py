"""Key names: one slot per shard, even slots, reversible members, legal prefixes."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.keys import SLOTS, Keys, SessionKey, slot

anything = st.text(st.characters(), max_size=60)


def test_a_slot_is_what_the_cluster_specification_says() -> None:
    # The worked example of the specification, and the rule of the first pair of braces.
    assert slot("123456789") == 12739
    assert slot("a{123456789}b{x}") == 12739
    assert slot("a{}{123456789}") == slot("a{}{123456789}")
    assert slot("{}x") != slot("x")


agents = st.sampled_from(["kimi-code", "acp"])


@given(anything, anything, agents)
def test_a_name_can_be_read_back(emitter: str, session: str, agent: str) -> None:
    key = SessionKey(emitter, session, agent)
    assert SessionKey.parse(key.name) == key


@given(anything, anything, agents, anything, anything, agents)
def test_two_sessions_never_share_a_hash(
    a: str, b: str, agent: str, c: str, d: str, other_agent: str
) -> None:
    one, two = SessionKey(a, b, agent), SessionKey(c, d, other_agent)
    assert (one == two) == (one.hash == two.hash)


@given(anything, anything, anything, st.sampled_from([1, 2, 16, 100]))
def test_all_keys_of_a_session_lie_in_one_slot(emitter: str, session: str, other: str, shards: int) -> None:
    keys = Keys("team:aep", shards)
    key = SessionKey(emitter, session)
    found = keys.session(key)
    names = [value for value in astuple(found) if isinstance(value, str)]
    names += [found.put(other), *astuple(keys.foreign(key, other)), keys.shard(found.shard, "feed")]
    assert len({slot(name) for name in names}) == 1
    assert all(name.startswith("team:aep:{") and name.isascii() and " " not in name for name in names)
    assert keys.shard_of(key) == found.shard


@pytest.mark.parametrize("shards", [3, 16, 64])
@pytest.mark.parametrize("nodes", [3, 5])
def test_slots_spread_evenly_over_nodes(shards: int, nodes: int) -> None:
    keys = Keys("aep", shards)
    per_node = Counter(slot(keys.shard(number, "feed")) * nodes // SLOTS for number in range(shards))
    held = [per_node[node] for node in range(nodes)]
    assert max(held) - min(held) <= 1


def test_sessions_spread_evenly_over_shards() -> None:
    keys = Keys("aep", 16)
    held = Counter(keys.shard_of(SessionKey("host", f"session-{n}")) for n in range(16_000))
    assert len(held) == 16
    assert min(held.values()) > 800


def test_the_shard_of_a_session_never_changes() -> None:
    # A new release that computes another shard would lose every session.
    key = SessionKey("laptop", "session-1")
    assert Keys("aep", 16).session(key).record == "aep:{12bd}:s:e0982cac064cf5f49f42398e44ece2cd:rec"
    assert Keys("aep", 1).session(key).record == "aep:{00}:s:e0982cac064cf5f49f42398e44ece2cd:rec"


@pytest.mark.parametrize("prefix", ["", "a{b}", "a b", "a*", "a\n"])
def test_a_prefix_that_would_break_the_tags_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Keys(prefix)


@pytest.mark.parametrize("shards", [0, -1, 5000])
def test_a_senseless_number_of_shards_is_refused(shards: int) -> None:
    with pytest.raises(ValueError, match="shards"):
        Keys("aep", shards)
