"""Whatever editors and agents do, in whatever order: what is told is consistent, and told once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.aep.levels import Capture
from handlers.lifecycle.reducer import Emitted
from tests.lifecycle import invariants
from tests.lifecycle.wires import Connection, Room

SESSIONS = ("a", "b")
LINKS = ("c1", "c2", "c3")
CALLS = ("1:x", "1:y", None)

session = st.sampled_from(SESSIONS)
call = st.sampled_from(CALLS)
number = st.integers(0, 4)
Step = tuple[str, tuple[Any, ...]]


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.tuples(*arguments))


STEPS = st.one_of(
    step("prompt", session),
    step("stop", number, st.sampled_from(["end_turn", "cancelled", "refusal", "odd word", None])),
    step("refuse", number, st.booleans()),
    step("ask", st.sampled_from(["session/new", "session/load", "session/resume", "session/fork"]), session),
    step("ask", st.sampled_from(["session/close", "session/delete", "session/list"]), session),
    step("answer", number, session),
    step("permission", session, call),
    step("choose", number, st.sampled_from(["approve_once", "reject", None])),
    step("call", session, call, st.sampled_from(["Bash", None]), st.sampled_from(["pending", "completed"])),
    step("progress", session, call, st.sampled_from(["in_progress", "completed", "failed"]), st.booleans()),
    step("update", session, st.sampled_from(["plan", "usage_update", "user_message_chunk", "odd"])),
    step("end"),
    step("wait", st.sampled_from([50, 1_500, 3_000, 90_000_000])),
)


def play(room: Room, wire: Connection, name: str, given: tuple[Any, ...]) -> None:
    if name == "prompt":
        wire.prompt(given[0])
    elif name == "stop":
        wire.stop(given[0], given[1])
    elif name == "refuse":
        wire.refuse(given[0], back=given[1])
    elif name == "ask":
        wire.ask(given[0], sessionId=given[1])
    elif name == "answer":
        wire.answer(given[0], {"sessionId": given[1]})
    elif name == "permission":
        wire.permission(given[1], given[0])
    elif name == "choose":
        wire.choose(given[0], given[1])
    elif name == "call":
        update = {"sessionUpdate": "tool_call", "toolCallId": given[1], "title": given[2], "status": given[3]}
        wire.tell("session/update", sessionId=given[0], update=update)
    elif name == "progress":
        update = {"sessionUpdate": "tool_call_update", "toolCallId": given[1], "status": given[2]}
        wire.tell("session/update", sessionId=given[0], update=update | ({"title": "T"} if given[3] else {}))
    elif name == "update":
        wire.tell("session/update", sessionId=given[0], update={"sessionUpdate": given[1]})
    elif name == "end":
        wire.end()
    else:
        room.wait(given[0])


def tell(story: list[tuple[str, Step]], capture: Capture, repeats: list[int]) -> Room:
    """The story; the lines at `repeats` are sent a second time."""
    room = Room(capture=capture)
    wires = {link: room.connect(link) for link in LINKS}
    for at, (link, (name, arguments)) in enumerate(story):
        wire = wires[link]
        before, joins, ids = wire.number, wire.joins.encode(), dict(wire.ids)
        play(room, wire, name, arguments)
        if at in repeats and wire.number > before:
            told = sum(map(len, room.events.values()))
            again = Connection(room, link)
            again.number, again.ids = before, ids
            again.joins = type(again.joins).decode(joins)
            play(room, again, name, arguments)
            assert sum(map(len, room.events.values())) == told
    return room


def check_runs(events: list[Emitted]) -> None:
    started, ended = dict[str | None, str](), set[str | None]()
    for event in events:
        if event.draft.type == "run.started":
            assert event.run not in started
            started[event.run] = event.id
            continue
        assert event.run is None or event.run in started
        if event.draft.type in invariants.RUN_ENDS:
            assert event.run not in ended
            assert event.cause == started[event.run]
            ended.add(event.run)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(LINKS), STEPS), max_size=60),
    st.sampled_from([Capture.METADATA, Capture.NONE, Capture.FULL]),
    st.lists(st.integers(0, 59), max_size=6),
)
def test_any_story(story: list[tuple[str, Step]], capture: Capture, repeats: list[int]) -> None:
    room = tell(story, capture, repeats)
    room.wait(100_000_000)
    for events in room.events.values():
        check_runs(events)
        if capture is not Capture.NONE:
            invariants.identity(events, frozenset())
            invariants.calls(events)
            assert invariants.requests(events) == set(), "no request stays open for ever"
        assert sum(event.draft.type == "session.ended" for event in events) <= 1
