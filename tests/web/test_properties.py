"""Whatever the frames, commands and snapshots, in whatever order: the invariants of a stream hold."""

from __future__ import annotations

import json
from typing import Any

from aep_sdk.projection import StateProjection
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.aep.capture import Posture
from handlers.aep.levels import Capture
from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import LIMIT
from handlers.lifecycle.commands import Cancel, Command, Decide
from handlers.lifecycle.cursors import Placed
from handlers.lifecycle.orders import Claim, Done, Fetch
from handlers.lifecycle.reducer import Happening, Input, Tick, reduce
from handlers.lifecycle.state import SessionState
from handlers.lifecycle.web import Resync
from handlers.mapping.hooks import map_hook
from handlers.mapping.moments import Moment
from handlers.web_batch import Reader, chunks
from tests.lifecycle.invariants import check
from tests.lifecycle.shelf import START_MS, finished
from tests.lifecycle.support import payload
from tests.web.frames import body
from tests.web.stage import EPOCH, SESSION

WORDS = st.sampled_from(["a", "b", "c"])
TURNS = st.integers(0, 3)
AGENTS = st.sampled_from(["main", "agent-0", None])


def frame(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), "agentId": AGENTS, **fields})


FRAMES = st.one_of(
    frame("turn.started", turnId=TURNS, origin=st.just({"kind": "user"})),
    frame("turn.ended", turnId=TURNS, reason=st.sampled_from(["completed", "cancelled", "failed", None])),
    frame("turn.step.completed", turnId=TURNS, usage=st.just({"inputOther": 7, "output": 3})),
    frame("tool.call.started", turnId=TURNS, toolCallId=WORDS, name=st.sampled_from(["Bash", "Agent"])),
    frame("tool.result", turnId=TURNS, toolCallId=WORDS, output=st.just("x"), isError=st.booleans()),
    frame("event.approval.requested", approval_id=WORDS, turn_id=TURNS, tool_call_id=WORDS),
    frame(
        "event.approval.resolved",
        approval_id=WORDS,
        decision=st.sampled_from(["approved", "rejected", "cancelled", None, 3]),
    ),
    frame("event.question.requested", question_id=WORDS, questions=st.just([{"question": "which?"}])),
    frame("event.question.answered", question_id=WORDS, answers=st.just({"which?": "this"})),
    frame("event.question.dismissed", question_id=WORDS),
    frame("subagent.spawned", subagentId=WORDS, parentToolCallId=WORDS),
    frame("subagent.completed", subagentId=WORDS),
    frame("task.started", info=st.fixed_dictionaries({"taskId": WORDS})),
    frame("task.terminated", info=st.fixed_dictionaries({"taskId": WORDS})),
    frame("some.other.frame"),
)
HOOKS = st.sampled_from(["SessionStart", "UserPromptSubmit", "Stop", "PreToolUse", "SessionEnd"])


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[Happening, int]]:
    """What happens to one session, and how many milliseconds after the one before."""
    seq = draw(st.integers(0, 5))
    reader = Reader("primary", Posture(), "link", offers=True)
    hooked = draw(st.booleans())
    story: list[tuple[Happening, int]] = [(Claim("link"), 0)]
    ordered = ["nobody"]
    for number in range(draw(st.integers(1, 40))):
        what = draw(st.integers(0, 11))
        happening: Happening
        if what <= 6:
            fields = dict(draw(FRAMES))
            seq += 1
            told = {
                "type": fields.pop("kind"),
                "seq": seq,
                "epoch": EPOCH,
                "session_id": SESSION,
                "payload": {**fields, "sessionId": SESSION},
            }
            (entry,) = reader.read(json.dumps(told).encode()).sessions[SESSION]
            happening = entry.happening
        elif what == 7:
            happening = Tick()
        elif what == 8:
            act = draw(st.sampled_from([Cancel(), Decide("nobody", "approved")]))
            happening = Command(f"cmd{number}", f"name{number}", act)
            ordered.append(happening.name)
        elif what == 9:
            happening = draw(st.sampled_from([Fetch("link"), Fetch("other"), Claim("link")]))
        elif what == 10:
            outcome = draw(st.sampled_from(["done", "gone", "unknown", "refused", "nonsense"]))
            happening = Done(draw(st.sampled_from(ordered)), outcome)
        elif hooked:
            happening = map_hook(payload(draw(HOOKS), tool_call_id="h", tool_name="Bash"), Posture())
        else:
            reason = draw(st.sampled_from([None, "gap"]))
            turn, running = draw(TURNS), draw(st.booleans())
            happening = Resync(f"web.{EPOCH}", seq, turn, running, reason=reason, primary=True)
        story.append((happening, draw(st.sampled_from([0, 5, 900, 2_500, 9_000]))))
    return story


def play(story: list[tuple[Happening, int]], size: int) -> tuple[SessionState, list[Any]]:
    """A story in batches of `size`; commands about a request find the one that is open."""
    state: SessionState | None = None
    events: list[Any] = []
    at, inputs = START_MS, list[Input]()
    for number, (happening, after) in enumerate(story):
        at += after
        inputs.append(Input(happening, at, Mint(START_MS, number.to_bytes(8, "big") + b"\0\0")))
        if len(inputs) == size or number == len(story) - 1:
            reduction = reduce(state, inputs, START_MS)
            encoded = reduction.state.encode()
            assert len(encoded) <= LIMIT
            state = SessionState.decode(encoded)
            assert state == reduction.state
            events += reduction.events
            inputs = []
    assert state is not None
    return state, events


@settings(max_examples=120)
@given(stories())
def test_the_invariants_hold(story: list[tuple[Happening, int]]) -> None:
    _, events = play(story, 1)
    check(events, {given.id for given, _ in story if isinstance(given, Command)})
    projection = StateProjection()
    for event in events:
        projection.apply(finished(event, SESSION))
    assert projection.state()["violations"] == []


@settings(max_examples=40)
@given(stories(), st.integers(2, 50))
def test_batches_change_nothing(story: list[tuple[Happening, int]], size: int) -> None:
    alone, events = play(story, 1)
    together, same = play(story, size)
    assert events == same
    assert alone == together


@settings(max_examples=40)
@given(stories(), st.data())
def test_frames_that_come_again_tell_nothing(story: list[tuple[Happening, int]], data: st.DataObject) -> None:
    _, events = play(story, 1)
    again: list[tuple[Happening, int]] = []
    placed: list[Placed] = []
    for happening, after in story:
        again.append((happening, after))
        if isinstance(happening, Placed):
            placed.append(happening)
        if placed and data.draw(st.booleans()):
            again.append((data.draw(st.sampled_from(placed)), 0))
    _, same = play(again, 1)
    # Ids come of the place in the story, which the repeats have moved.
    assert [(e.draft.type, e.draft.data, e.seq) for e in events] == [
        (e.draft.type, e.draft.data, e.seq) for e in same
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(
    [
        "turn.started",
        "turn.ended",
        "tool.call.started",
        "tool.result",
        "event.approval.requested",
        "event.question.requested",
        "event.question.answered",
        "subagent.spawned",
        "task.started",
        "compaction.completed",
    ]
)
NAMES = st.sampled_from(
    ["agentId", "turnId", "toolCallId", "approval_id", "question_id", "questions", "answers", "info", "name"]
)


@settings(max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": KINDS, "seq": st.integers(-1, 20) | VALUES, "session_id": st.just(SESSION) | VALUES},
            optional={"payload": st.dictionaries(NAMES, VALUES, max_size=6) | VALUES, "epoch": VALUES},
        )
        | st.fixed_dictionaries(
            {"link": st.sampled_from(["sessions", "claim", "snapshot", "result", "x"])},
            optional={"ids": VALUES, "session_id": VALUES, "seq": VALUES, "approvals": VALUES, "id": VALUES},
        )
        | VALUES,
        max_size=12,
    )
)
def test_anything_at_all(lines: list[Any]) -> None:
    raw = b"\n".join(json.dumps(line).encode() for line in lines)
    for mode in ("companion", "primary"):
        batch = Reader(mode, Posture(Capture.FULL, Capture.FULL), "link", True).read(raw)  # type: ignore[arg-type]
        for entries in batch.sessions.values():
            state = None
            for chunk in chunks(entries):
                inputs = [Input(one, START_MS, Mint(START_MS, bytes(10))) for one in chunk]
                reduction = reduce(state, inputs, START_MS)
                state = reduction.state
                assert len(state.encode()) <= LIMIT
                for event in reduction.events:
                    finished(event, SESSION)


def test_a_state_full_of_web_content_fits() -> None:
    """Long names, many open calls, forms, orders and requests at once stay within the bound of a state."""
    reader = Reader("primary", Posture(Capture.FULL, Capture.FULL), "l" * 64, offers=True)
    lines: list[dict[str, Any]] = []

    def add(kind: str, **payload: Any) -> None:
        lines.append(
            {"type": kind, "seq": len(lines), "epoch": "e" * 60, "session_id": SESSION, "payload": payload}
        )

    add("turn.started", turnId=0, agentId="main")
    questions = [
        {
            "id": f"q_{n}",
            "question": "?" * 900,
            "options": [{"id": f"o_{n}_{m}", "label": "x"} for m in range(6)],
        }
        for n in range(4)
    ]
    for n in range(600):
        add("tool.call.started", turnId=0, agentId="main", toolCallId=f"{n:x<60}", name="N" * 128)
        add("event.question.requested", turn_id=0, question_id=f"q{n:x<60}", questions=questions)
        add("event.approval.requested", turn_id=0, approval_id=f"a{n:x<60}", tool_name="N" * 200)
        add("subagent.spawned", subagentId=f"{n:x<60}", parentToolCallId=f"{n:x<60}")
        add("task.started", info={"taskId": f"{n:x<60}"})
    state = None
    for number, entry in enumerate(reader.read(body(lines)).sessions[SESSION]):
        mint = Mint(START_MS, number.to_bytes(8, "big") + b"\0\0")
        state = reduce(state, [Input(entry.happening, START_MS, mint)], START_MS).state
        if number % 100 == 0:
            assert len(state.encode()) <= LIMIT
    assert state is not None
    assert len(state.encode()) <= LIMIT
    assert len(state.calls) > 50


def test_a_moment_of_its_own_time_moves_no_clock_of_orders() -> None:
    """Frames carry the time of the vendor, which may lie behind; what waits by our clock waits on."""
    moment = Moment("web", "turn.started", SESSION, (), map_hook({}, Posture()).fallback)
    state = reduce(None, [Input(Claim("link"), START_MS, Mint(START_MS, bytes(10)))], START_MS).state
    late = reduce(state, [Input(moment, START_MS - 60_000, Mint(START_MS, bytes(10)))], START_MS)
    assert late.state.due_ms is None
