"""What must hold for the events of a session, whatever the hooks did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from handlers.lifecycle.reducer import Emitted

RUN_ENDS = ("run.finished", "run.failed", "run.cancelled")
CALL_ENDS = ("tool.completed", "tool.failed", "tool.denied")
REQUEST_ENDS = ("attention.resolved", "attention.timeout")


def check(events: Sequence[Emitted], commands: Set[str] = frozenset()) -> set[str]:
    """Raise AssertionError where an invariant is broken. Returns the ids of requests still open.

    `commands` are the ids of commands, which are causes too and stand in no session's stream.
    """
    identity(events, commands)
    _runs(events, commands)
    calls(events)
    assert sum(event.draft.type == "session.ended" for event in events) <= 1
    return requests(events)


def identity(events: Sequence[Emitted], commands: Set[str]) -> None:
    last, seen = -1, set[str]()
    for event in events:
        assert event.seq > last, "positions rise"
        assert event.id not in seen, "ids are used once"
        assert event.cause is None or event.cause in seen or event.cause in commands, "a cause comes first"
        for name in ("duration_ms", "latency_ms"):
            assert _whole(event.draft.data.get(name, 0)), f"{name} is a whole number"
        last = event.seq
        seen.add(event.id)


def _whole(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _runs(events: Sequence[Emitted], commands: Set[str]) -> None:
    started, ended = dict[str, str](), set[str]()
    for event in events:
        kind, run = event.draft.type, event.run
        if kind == "run.started":
            assert run is not None
            assert run not in started, "a run starts once"
            assert set(started) <= ended, "one run at a time"
            started[run] = event.id
            continue
        assert run is None or run in started, "no run is made up"
        if kind in RUN_ENDS:
            assert run is not None
            assert run not in ended, "one terminal per run"
            assert event.cause == started[run] or event.cause in commands
            ended.add(run)


def calls(events: Sequence[Emitted]) -> None:
    requested = {event.id for event in events if event.draft.type == "tool.requested"}
    paired, alone = Counter[str](), Counter[tuple[object, str | None]]()
    denied = set[tuple[object, str | None]]()
    for event in events:
        tool = event.draft.data.get("tool")
        call = tool.get("call_id") if isinstance(tool, dict) else None
        if event.draft.type == "tool.requested":
            denied.discard((call, event.run))
        if event.draft.type not in CALL_ENDS:
            continue
        assert (call, event.run) not in denied, "nothing after a denial"
        if event.draft.type == "tool.denied":
            denied.add((call, event.run))
        if event.cause in requested:
            assert event.cause is not None
            paired[event.cause] += 1
        elif call is not None:
            alone[call, event.run] += 1
    assert all(count == 1 for count in paired.values()), "one terminal per call"
    again = Counter[tuple[object, str | None]]()
    for event in events:
        if event.draft.type == "tool.requested":
            tool = event.draft.data["tool"]
            assert isinstance(tool, dict)
            again[tool.get("call_id"), event.run] += 1
    for key, count in alone.items():
        assert count <= 1 + again[key], "one terminal per call that came alone"


def requests(events: Sequence[Emitted]) -> set[str]:
    open_, answered, known = set[str](), set[str](), set[str]()
    for event in events:
        kind, subject = event.draft.type, event.draft.subject
        if kind == "attention.requested":
            open_.add(event.id)
            known.add(event.id)
        elif kind == "attention.answered":
            assert subject in open_ - answered, "one answer, to an open request"
            answered.add(subject)
        elif kind in REQUEST_ENDS:
            assert subject is not None
            assert subject in open_, "one terminal per request, after it"
            was_answered = event.draft.data.get("resolution") == "answered"
            assert was_answered == (subject in answered), "resolved as it was"
            open_.remove(subject)
        elif kind == "session.ended":
            assert not open_, "no request outlives the session"
    return open_
