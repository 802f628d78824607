"""A packed form of a plain commit says what the long form says, and goes short only where it may."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from state.commits import form, pack
from state.connection import Client, Limits
from state.keys import Keys, SessionKey
from state.link import Argument
from state.sessions import MAX_EVENTS, MAX_STATE, Bounds, Record, Sessions

KEYS = Keys("aep", 4)
BOUNDS = Bounds(buffer=8, feed=30)
PLAIN = SessionKey("host", "session-1")


class _Recorder:
    """Takes the place of a client and keeps what the long way would have sent."""

    limits = Limits()

    def __init__(self) -> None:
        self.sent: tuple[Argument, ...] = ()

    async def script(self, script: Any, keys: Any, arguments: Any, *, durable: bool) -> list[int]:
        self.sent = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return [1, 0]


@pytest.mark.parametrize("due_ms", [None, 0, 1_790_000_000_123])
@pytest.mark.parametrize("events", [[], [(7, b"{}")], [(7, b"\x00\r\n$3"), (8, b""), (2**40, b"x" * 70_000)]])
@pytest.mark.parametrize("key", [PLAIN, SessionKey("höst", "sé\ud800\r\n{x}", "other")])
async def test_both_ways_send_the_same_words(
    key: SessionKey, events: list[tuple[int, bytes]], due_ms: int | None
) -> None:
    recorder: Any = _Recorder()
    step: dict[str, Any] = {
        "expected": "" if due_ms == 0 else "00ff.11",
        "commit_id": "00ff.12",
        "state": b"\xff\r\n" * 100,
        "events": events,
        "now_ms": 1_790_000_000_000,
        "due_ms": due_ms,
        "ended": due_ms is None,
    }
    await Sessions(recorder, KEYS, BOUNDS).commit(key, **step)
    packed = pack(
        form(KEYS.session(key), BOUNDS),
        step["expected"],
        step["commit_id"],
        step["state"],
        step["now_ms"],
        step["due_ms"],
        step["ended"],
        step["events"],
    )
    assert packed == hiredis.pack_command(recorder.sent)


def start(sessions: Sessions, **changes: Any) -> Any:
    """One plain commit of the first event, the short way."""
    step: dict[str, Any] = {
        "expected": "",
        "commit_id": sessions.commit_id(),
        "state": b"state",
        "events": [(5, b"event")],
        "now_ms": 1_000_000,
        "due_ms": None,
        "ended": False,
    }
    return sessions.start(sessions.form(PLAIN), **step | changes)


async def test_the_short_way_needs_a_connection_that_stands(client: Client, keys: Keys) -> None:
    sessions = Sessions(client, keys, BOUNDS)
    assert start(sessions) is None
    assert await sessions.load(PLAIN) == Record(None, "", 0)
    # Once it stands, a server that does not know the script yet says so; then it is the long way's turn.
    await sessions.commit(
        SessionKey("host", "other"),
        expected="",
        commit_id=sessions.commit_id(),
        state=b"",
        events=[],
        now_ms=1,
    )
    commit_id = sessions.commit_id()
    reply = await start(sessions, commit_id=commit_id)
    assert reply == [1, 0]
    assert await sessions.load(PLAIN) == Record(b"state", commit_id, 5)
    assert (await start(sessions))[0] == 0
    assert await start(sessions, expected=commit_id, commit_id=commit_id) == [1, 1]


async def test_what_is_too_large_is_left_to_the_long_way(client: Client, keys: Keys) -> None:
    sessions = Sessions(client, keys, BOUNDS)
    await sessions.load(PLAIN)
    assert start(sessions, state=b"x" * (MAX_STATE + 1)) is None
    assert start(sessions, events=[(n, b"") for n in range(MAX_EVENTS + 1)]) is None
