"""What a commit stores, refuses and remembers."""

from __future__ import annotations

import pytest

from state.connection import Client
from state.errors import LayoutMismatch, Refused
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import (
    DAY_MS,
    HOUR_MS,
    MAX_EVENTS,
    MAX_STATE,
    Bounds,
    Committed,
    Conflict,
    Put,
    Record,
    Sessions,
)

KEY = SessionKey("host", "session-1")
NOW = 1_000_000


@pytest.fixture
def sessions(client: Client, keys: Keys) -> Sessions:
    return Sessions(client, keys, Bounds(buffer=8))


async def step(
    sessions: Sessions,
    expected: str,
    *positions: int,
    key: SessionKey = KEY,
    state: bytes = b"state",
    now_ms: int = NOW,
    due_ms: int | None = None,
    ended: bool = False,
    puts: tuple[Put, ...] = (),
) -> str:
    """Commit one event at each position; the new version."""
    answer = await sessions.commit(
        key,
        expected=expected,
        commit_id=sessions.commit_id(),
        state=state,
        events=[(position, b"event %d" % position) for position in positions],
        now_ms=now_ms,
        due_ms=due_ms,
        ended=ended,
        puts=puts,
    )
    assert isinstance(answer, Committed), answer
    assert not answer.again
    return answer.version


async def test_a_session_nobody_wrote_is_empty(sessions: Sessions) -> None:
    assert await sessions.load(KEY) == Record(None, "", 0)


async def test_what_was_committed_is_loaded(sessions: Sessions) -> None:
    version = await step(sessions, "", 5, 6, state=b"\x00 any \xff bytes")
    assert await sessions.load(KEY) == Record(b"\x00 any \xff bytes", version, 6)
    version = await step(sessions, version, 9)
    assert (await sessions.load(KEY)).top == 9
    version = await step(sessions, version, state=b"no event")
    assert await sessions.load(KEY) == Record(b"no event", version, 9)


async def test_a_wrong_guess_is_a_conflict_that_brings_the_truth(sessions: Sessions) -> None:
    version = await step(sessions, "", 5)
    for expected in ("", "another"):
        answer = await sessions.commit(
            KEY, expected=expected, commit_id="x.1", state=b"mine", events=[(9, b"mine")], now_ms=NOW
        )
        assert answer == Conflict(Record(b"state", version, 5))
    answer = await sessions.commit(
        SessionKey("host", "new"), expected="gone", commit_id="x.1", state=b"", events=[], now_ms=NOW
    )
    assert answer == Conflict(Record(None, "", 0))


@pytest.mark.parametrize("positions", [(5,), (3,), (6, 6), (7, 6), (0,), (9, 4)])
async def test_a_position_that_does_not_rise_is_a_conflict_and_writes_nothing(
    sessions: Sessions, positions: tuple[int, ...]
) -> None:
    version = await step(sessions, "", 5, due_ms=7)
    answer = await sessions.commit(
        KEY,
        expected=version,
        commit_id="x.1",
        state=b"mine",
        events=[(position, b"mine") for position in positions],
        now_ms=NOW + 1,
        puts=[Put("side", b"value", 1000)],
    )
    assert answer == Conflict(Record(b"state", version, 5))
    assert await sessions.get(KEY, "side") is None
    assert (await sessions.activity(sessions.keys.shard_of(KEY)))[0].active_ms == NOW


async def test_a_stream_that_stands_above_its_state_is_a_conflict_and_writes_nothing(
    sessions: Sessions, client: Client, keys: Keys
) -> None:
    version = await step(sessions, "", 5)
    events = keys.session(KEY).events
    await client.call(events, "XADD", events, "50-0", "p", "5", "e", "from elsewhere")
    answer = await sessions.commit(
        KEY, expected=version, commit_id="x.1", state=b"mine", events=[(40, b"mine")], now_ms=NOW
    )
    assert answer == Conflict(Record(b"state", version, 50))
    assert await sessions.load(KEY) == Record(b"state", version, 50)
    await step(sessions, version, 51)


async def test_a_stream_whose_state_is_gone_still_keeps_its_positions(
    sessions: Sessions, client: Client, keys: Keys
) -> None:
    await step(sessions, "", 50)
    record = keys.session(KEY).record
    await client.call(record, "DEL", record)
    assert await sessions.load(KEY) == Record(None, "", 50)
    answer = await sessions.commit(
        KEY, expected="", commit_id="x.1", state=b"new", events=[(50, b"again")], now_ms=NOW
    )
    assert answer == Conflict(Record(None, "", 50))
    await step(sessions, "", 51)


async def test_a_commit_is_recognised_after_others_came_on_top(sessions: Sessions) -> None:
    mine = sessions.commit_id()
    call = {"expected": "", "commit_id": mine, "state": b"mine", "events": [(5, b"mine")], "now_ms": NOW}
    assert await sessions.commit(KEY, **call) == Committed(mine)
    assert await sessions.commit(KEY, **call) == Committed(mine, again=True)
    version = mine
    for number in range(15):
        other = Sessions(sessions.client, sessions.keys)
        version = await step(other, version, 10 + number)
    assert await sessions.commit(KEY, **call) == Committed(mine, again=True)
    page = await Replay(sessions.client, sessions.keys).read(KEY)
    assert [body for _, body in page.entries].count(b"mine") == 1


async def test_one_commit_id_is_kept_per_process(sessions: Sessions, client: Client, keys: Keys) -> None:
    mine = sessions.commit_id()
    call = {"expected": "", "commit_id": mine, "state": b"mine", "events": [(5, b"mine")], "now_ms": NOW}
    await sessions.commit(KEY, **call)
    other, version = Sessions(client, keys), mine
    for number in range(200):
        version = await step(other, version, 10 + number)
    assert await sessions.commit(KEY, **call) == Committed(mine, again=True)
    record = keys.session(KEY).record
    assert len(await client.call(record, "HGET", record, "c")) < 100


async def test_an_ended_session_is_remembered_beyond_its_state(
    sessions: Sessions, client: Client, keys: Keys
) -> None:
    version = await step(sessions, "", 5)
    await step(sessions, version, 6, ended=True)
    names = keys.session(KEY)
    for name in (names.record, names.events):
        await client.call(name, "DEL", name)
    assert await sessions.load(KEY) == Record(None, "", 6, ended=True)
    lived = await client.call(names.tombstone, "PTTL", names.tombstone)
    assert 364 * DAY_MS < lived <= 365 * DAY_MS
    answer = await sessions.commit(
        KEY, expected="", commit_id="x.1", state=b"resumed", events=[(6, b"again")], now_ms=NOW
    )
    assert answer == Conflict(Record(None, "", 6, ended=True))
    await step(sessions, "", 7)


async def test_due_sessions_are_listed_until_they_are_no_longer_due(sessions: Sessions) -> None:
    shard = sessions.keys.shard_of(KEY)
    version = await step(sessions, "", 5, due_ms=NOW + 10)
    assert await sessions.due(shard, NOW + 9) == []
    assert await sessions.due(shard, NOW + 10) == [KEY]
    version = await step(sessions, version, due_ms=NOW + 20)
    assert await sessions.due(shard, NOW + 10) == []
    await step(sessions, version)
    assert await sessions.due(shard, NOW + 100) == []


async def test_a_due_time_whose_state_is_gone_can_be_taken_off(
    sessions: Sessions, client: Client, keys: Keys
) -> None:
    shard = keys.shard_of(KEY)
    await step(sessions, "", 5, due_ms=NOW)
    assert not await sessions.forget_due(KEY, NOW)
    record = keys.session(KEY).record
    await client.call(record, "DEL", record)
    assert not await sessions.forget_due(KEY, NOW - 1)
    assert await sessions.forget_due(KEY, NOW)
    assert await sessions.due(shard, NOW) == []


async def test_sessions_are_listed_by_activity(client: Client) -> None:
    sessions = Sessions(client, Keys("aep", 1))
    found = [SessionKey(f"host:{n % 2}", f"id\n{n} é\ud800") for n in range(5)]
    for number in (3, 1, 4, 0, 2):
        await step(sessions, "", 5, key=found[number], now_ms=NOW + number)
    assert await sessions.sessions(0) == found[::-1]
    assert await sessions.sessions(0, since_ms=NOW + 3) == [found[4], found[3]]
    assert await sessions.sessions(0, limit=2, offset=1) == [found[3], found[2]]
    assert await sessions.count(0) == 5


async def test_a_put_is_written_with_its_commit_and_once(sessions: Sessions) -> None:
    put = Put("ack:source\n1", b"accepted", 60_000)
    version = await step(sessions, "", 5, puts=(put, Put("note", b"1", 60_000, once=False)))
    assert await sessions.get(KEY, put.name) == b"accepted"
    answer = await sessions.commit(
        KEY,
        expected=version,
        commit_id="x.1",
        state=b"mine",
        events=[(6, b"mine")],
        now_ms=NOW,
        puts=[Put(put.name, b"refused", 60_000), Put("note", b"2", 60_000, once=False)],
    )
    assert answer == Conflict(Record(b"state", version, 5), {put.name: b"accepted"})
    assert await sessions.get(KEY, "note") == b"1"
    assert await sessions.put(KEY, Put(put.name, b"other", 1000)) == b"accepted"
    assert await sessions.put(KEY, Put("fresh", b"new", 60_000)) is None
    assert await sessions.put(KEY, Put("fresh", b"newer", 60_000, once=False)) is None
    assert await sessions.get(KEY, "fresh") == b"newer"


async def test_the_buffer_is_exact(sessions: Sessions) -> None:
    version = ""
    for number in range(1, 30):
        version = await step(sessions, version, number * 10, number * 10 + 1)
        page = await Replay(sessions.client, sessions.keys).read(KEY)
        assert len(page.entries) == min(8, number * 2)
    await step(sessions, version, *range(1000, 1020))
    page = await Replay(sessions.client, sessions.keys).read(KEY)
    assert [position for position, _ in page.entries] == list(range(1012, 1020))


async def test_lifetimes_are_renewed_once_an_hour(sessions: Sessions, client: Client, keys: Keys) -> None:
    names = keys.session(KEY)
    version = await step(sessions, "", 5)
    for name in (names.record, names.events, names.feed):
        await client.call(name, "PEXPIRE", name, 5_000_000)
    version = await step(sessions, version, 6, now_ms=NOW + HOUR_MS - 1)
    assert await client.call(names.events, "PTTL", names.events) <= 5_000_000
    version = await step(sessions, version, 7, now_ms=NOW + HOUR_MS)
    assert await client.call(names.events, "PTTL", names.events) > 6 * DAY_MS
    # The state outlives the stream, whatever the order of things.
    assert await client.call(names.record, "PTTL", names.record) > 13 * DAY_MS
    assert await client.call(names.feed, "PTTL", names.feed) > 6 * DAY_MS


async def test_sessions_long_silent_leave_the_index(client: Client) -> None:
    sessions = Sessions(client, Keys("aep", 1))
    await step(sessions, "", 5)
    await step(sessions, "", 5, key=SessionKey("host", "later"), now_ms=NOW + 15 * DAY_MS)
    assert await sessions.sessions(0) == [SessionKey("host", "later")]


async def test_another_number_of_shards_is_refused(client: Client) -> None:
    await Sessions(client, Keys("t1", 4)).prepare()
    await Sessions(client, Keys("t1", 4)).prepare()
    await Sessions(client, Keys("t2", 5)).prepare()
    with pytest.raises(LayoutMismatch, match="4 shards"):
        await Sessions(client, Keys("t1", 5)).prepare()


async def test_a_key_of_a_foreign_type_stops_the_commit_before_it_writes(
    sessions: Sessions, client: Client, keys: Keys
) -> None:
    names = keys.session(KEY)
    for name in (names.feed, names.index, names.due, names.feed_number, names.record, names.events):
        await client.call(name, "DEL", name)
        if name == names.feed_number:
            await client.call(name, "LPUSH", name, "x")
        else:
            await client.call(name, "SET", name, "x")
        with pytest.raises(Refused):
            await sessions.commit(KEY, expected="", commit_id="x.1", state=b"", events=[(5, b"")], now_ms=NOW)
        await client.call(name, "DEL", name)
        assert await sessions.load(KEY) == Record(None, "", 0)


async def test_a_full_server_refuses_before_it_writes(
    client: Client, admin: Client, keys: Keys, redis_url: str
) -> None:
    sessions = Sessions(client, keys)
    version = await step(sessions, "", 5)
    try:
        await admin.everywhere("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused, match="memory"):
            await sessions.commit(
                KEY, expected=version, commit_id="x.1", state=b"mine", events=[(6, b"mine")], now_ms=NOW
            )
    finally:
        await admin.everywhere("CONFIG", "SET", "maxmemory", "0")
    assert await sessions.load(KEY) == Record(b"state", version, 5)


async def test_what_is_too_large_never_reaches_the_server(sessions: Sessions) -> None:
    many = [(number, b"") for number in range(1, MAX_EVENTS + 2)]
    with pytest.raises(ValueError, match="too large"):
        await sessions.commit(KEY, expected="", commit_id="x.1", state=b"", events=many, now_ms=NOW)
    large = bytes(MAX_STATE + 1)
    with pytest.raises(ValueError, match="too large"):
        await sessions.commit(KEY, expected="", commit_id="x.1", state=large, events=[], now_ms=NOW)
    answer = await sessions.commit(
        KEY, expected="", commit_id="x.1", state=bytes(MAX_STATE), events=many[:-1], now_ms=NOW
    )
    assert isinstance(answer, Committed)


async def test_scripts_come_back_after_they_were_flushed(
    sessions: Sessions, client: Client, admin: Client
) -> None:
    version = await step(sessions, "", 5)
    await admin.everywhere("SCRIPT", "FLUSH")
    version = await step(sessions, version, 6)
    await admin.everywhere("SCRIPT", "FLUSH")
    assert (await sessions.load(KEY)).version == version
