"""The state of one session: what the reducer must remember between two events, and nothing more.

It is stored as one JSON array (fields in order, schema version first) of at most `LIMIT` bytes: open
calls are forgotten first, oldest first, and are unpaired from then on, never invented. It holds ids,
times and machine words; content only inside a kept draft, at most `KEPT` bytes of it, at the capture
level the draft already had. Commit ids and versions are the storage's own business, not ours.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity
from handlers.errors import InvalidState
from handlers.lifecycle import past
from handlers.mapping.moments import Draft

SCHEMA = 1
LIMIT = 64 * 1024  # bytes of an encoded state
KEPT = 768  # bytes of data of a draft that waits

# How many of each: all but the calls fit into `LIMIT` together, whatever is in them.
CALLS = 256
TOLD = 24
PAST = 512
REQUESTS = 24
RESULTS = 3
FAILURES = 3
HELD = 6
STRAYS = 4
SPAWNS = 24
GATES = 16
CLOSED = 48
QUEUE = 20
CURSORS = 16
TURNS = 8
PROMPTS = 3
FORMS = 4
BEGUN = 48
ORDERS = 8
WORD = 128  # bytes of a name that a gate keeps
COMMAND = 64  # characters of a command's id

_CLIPS = (96, 24, 4)  # characters left of a text that does not fit
_ROOM = LIMIT - 4 * 1024
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Engine = Literal["", "v1", "v2", "new"]
Turn = int | str | None


class Kept(Struct, array_like=True, frozen=True):
    """A draft that waits for its moment."""

    type: str
    data: dict[str, Any]
    subject: str | None
    capture: str
    severity: str

    def draft(self) -> Draft:
        return Draft(self.type, self.data, self.subject, Capture(self.capture), Severity(self.severity))


class Held(Struct, array_like=True, frozen=True):
    """An end that may be the main agent's or a subagent's: a `Stop`, `StopFailure` or `Interrupt`."""

    failed: bool
    at: int  # Unix ms
    terminal: Kept
    fallback: Kept


class Run(Struct, array_like=True):
    """The open run. `started` is the id of its `run.started`; `owes` a `TurnStarted` still to come."""

    id: str
    started: str
    at: int  # Unix ms
    turn: Turn = None
    owes: bool = False
    queued: bool = False
    held: list[Held] = []
    interrupt: Held | None = None
    doubts: list[Held] = []  # told as a subagent's, and perhaps the main agent's: at most one of a kind


class Call(Struct, array_like=True, frozen=True, gc=False):
    """A tool call without its terminal. `id` is its `tool.requested`; `name` where the wire needs it."""

    id: str
    at: int  # Unix ms
    run: str | None
    name: str | None = None


class Told(Struct, array_like=True, frozen=True, gc=False):
    """A call that has its terminal. `owed`: it was denied, and the vendor's own failure is to come."""

    run: str | None
    owed: bool


class Failure(Struct, array_like=True, frozen=True):
    """A `tool.failed` that waits for the answer to the call's open permission request."""

    at: int  # Unix ms
    due: int  # Unix ms
    failed: Kept
    fallback: Kept


class Request(Struct, array_like=True, frozen=True):
    """An `attention.requested` without its terminal. `main`: who asks, None where nobody says."""

    id: str
    at: int  # Unix ms
    due: int  # Unix ms: it is dismissed when nothing closed it before
    call: str | None
    run: str | None
    main: bool | None
    turn: Turn
    bare: bool  # the posture lets no data ride, not even ours


class Result(Struct, array_like=True, frozen=True):
    """The answer to a request, which overtook it and waits for it."""

    at: int  # Unix ms
    due: int  # Unix ms
    call: str | None
    verdict: Kept
    denied: Kept | None
    fallback: Kept


class Spawn(Struct, array_like=True, frozen=True):
    """A call that started a subagent, or `many`. `id` is its `tool.requested`, `task` the vendor's id."""

    call: str
    id: str
    many: bool
    task: str | None = None


class Crew(Struct, array_like=True):
    """What is known of the subagents, whose hooks arrive as if they were the main agent's."""

    foreground: list[Spawn] = []
    subagents: int = 0  # spawned since the foreground was empty; a swarm counts as many
    begun: int = 0  # brackets under the foreground calls, and those of them still open
    open: int = 0
    stops: int = 0  # `Stop`s and `StopFailure`s seen under the foreground calls
    failures: int = 0
    unused: int = 0  # holds its place in the stored form
    failing: int = 0  # Unix ms until which a `StopFailure` is a failed subagent's
    background: list[Spawn] = []
    anonymous: int = 0  # ended by a `SubagentStop`, which does not say which
    named: int = 0  # ended by a `Notification` whose `SubagentStop` is still to come
    brackets: int = 0  # engine v1: open brackets outside the foreground


class Verdict(Struct, array_like=True, frozen=True):
    """What was decided about a gate, and not applied yet. `name` is where the words are kept, if any."""

    option: str
    command: str  # id of the command
    by: str | None
    name: str | None


class Gate(Struct, array_like=True, frozen=True):
    """A tool call whose hook is held until a human answers: open, or decided when it has a verdict.

    `id` is its `attention.requested`. The gate is kept under its ticket, which names the process that holds
    the hook; what is closed is forgotten but for its id.
    """

    id: str
    at: int  # Unix ms
    until: int  # Unix ms at which the hook is let go
    call: str
    run: str | None
    tool: str
    call_id: str
    capture: str  # level of the attention events about it
    verdict: Verdict | None = None


class Queued(Struct, array_like=True, frozen=True):
    """An instruction for the session's next prompt. `name` is where its words are kept."""

    command: str  # id of the command
    name: str
    at: int  # Unix ms
    due: int  # Unix ms at which it is too old
    ticket: str | None = None  # of the prompt that it was given to


class Form(Struct, array_like=True, frozen=True):
    """The questions of a request: id, digest of the text, and per option its id and digest of the label."""

    questions: list[tuple[str, str, list[tuple[str, str]]]]


class Order(Struct, array_like=True, frozen=True):
    """A command that a link is to carry out at the vendor's server.

    `target` is the key of the request that it answers, or the run that it cancels; `phase` is `new`, `handed`
    to the link, `done` by its word.
    """

    command: str  # id of the command
    kind: Literal["respond", "cancel"]
    target: str
    option: str
    words: bool
    by: str | None
    level: str  # capture level of what is told about it
    run: str | None
    due: int  # Unix ms at which it is acknowledged, or forgotten
    phase: Literal["new", "handed", "done"] = "new"


class Web(Struct, array_like=True):
    """What the `kimi web` channel needs beyond the rest."""

    run: str | None = None  # the last run that began here
    whole: bool = False  # every step of it was seen, so far
    input: int = 0  # tokens of its steps
    output: int = 0
    forms: dict[str, Form] = {}  # by the key of the request
    begun: dict[str, str] = {}  # a subagent or task → id of the event that told its beginning
    link: str | None = None  # the link that has the session at its server
    asks: dict[str, str] = {}  # id of an `attention.requested` that can be answered here → its key
    orders: dict[str, Order] = {}  # by the name of the command
    acked: list[str] = []  # names of the last commands that were orders

    def copy(self) -> Web:
        return Web(
            self.run,
            self.whole,
            self.input,
            self.output,
            self.forms.copy(),
            self.begun.copy(),
            self.link,
            self.asks.copy(),
            self.orders.copy(),
            list(self.acked),
        )


class Open(Struct, array_like=True, frozen=True):
    """A run of a channel that says itself which run an end ends. `started` is the id of its `run.started`."""

    id: str
    started: str
    at: int  # Unix ms


class Prompt(Struct, array_like=True, frozen=True):
    """A prompt that was asked while a turn was open, and may be refused."""

    at: int  # Unix ms
    draft: Kept


class Acp(Struct, array_like=True):
    """What the ACP channel needs beyond the rest, by link and request."""

    turns: dict[str, Open] = {}
    prompts: dict[str, Prompt] = {}

    def copy(self) -> Acp:
        return Acp(self.turns.copy(), self.prompts.copy())


class Ending(Struct, array_like=True, frozen=True):
    """A `SessionEnd` that waits a moment for the late end of its last run."""

    at: int  # Unix ms
    due: int  # Unix ms
    draft: Kept


class SessionState(Struct, array_like=True):
    """Everything remembered of one session. `last_seq` is the position of its last event."""

    schema: int = SCHEMA
    last_seq: int = -1
    ended: bool = False
    engine: Engine = ""
    started: str | None = None  # id of its `session.started`, where one was seen
    started_at: int | None = None  # Unix ms, only where the session began there
    runs: int = 0
    run: Run | None = None
    closed_at: int = 0  # Unix ms of the last end of a run
    strays: list[int] = []  # Unix ms of `Stop`s that closed nothing
    turn: int | None = None  # the highest main turn seen
    crew: Crew = msgspec.field(default_factory=Crew)
    calls: dict[str, Call] = {}
    told: dict[str, Told] = {}
    failures: dict[str, Failure] = {}
    requests: dict[str, Request] = {}
    results: dict[str, Result] = {}
    ending: Ending | None = None
    bare: bool = False  # the posture of the last event lets no data ride, not even ours
    due_ms: int | None = None  # Unix ms at which the state wants a tick
    gates: dict[str, Gate] = {}  # by ticket
    closed: dict[str, str] = {}  # id of a gate's request → how it ended
    queue: list[Queued] = []
    given: list[Queued] = []  # the instructions of the last prompts, which may come back
    over: bool = False  # it ended, and has not been resumed since
    cursors: dict[str, int] = {}  # numbered streams, the one that moved last at the end → last number taken
    web: Web = msgspec.field(default_factory=Web)
    acp: Acp | None = None
    past: str = ""  # digests of calls that had their terminal before those of `told`; see `past.py`

    def encode(self) -> bytes:
        """The state as JSON, at most `LIMIT` bytes."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> SessionState:
        """Read what `encode` wrote. Raises InvalidState for anything else, other schemas included."""
        try:
            state = _DECODER.decode(encoded)
        except msgspec.MsgspecError as error:
            raise InvalidState(f"not a session state: {error}") from error
        if state.schema != SCHEMA:
            raise InvalidState(f"session state of schema {state.schema}, this version reads {SCHEMA}")
        return state

    @classmethod
    def tombstone(cls, last_seq: int) -> SessionState:
        """What is left when the state of an ended session has expired: it ended, and where it stood."""
        return cls(last_seq=last_seq, ended=True, over=True)

    def copy(self) -> SessionState:
        """A copy that can be changed without changing this one; entries are shared, they never change."""
        run, crew = self.run, self.crew
        if run is not None:
            run = Run(
                run.id,
                run.started,
                run.at,
                run.turn,
                run.owes,
                run.queued,
                list(run.held),
                run.interrupt,
                list(run.doubts),
            )
        return SessionState(
            self.schema,
            self.last_seq,
            self.ended,
            self.engine,
            self.started,
            self.started_at,
            self.runs,
            run,
            self.closed_at,
            list(self.strays),
            self.turn,
            Crew(
                list(crew.foreground),
                crew.subagents,
                crew.begun,
                crew.open,
                crew.stops,
                crew.failures,
                crew.unused,
                crew.failing,
                list(crew.background),
                crew.anonymous,
                crew.named,
                crew.brackets,
            ),
            self.calls.copy(),
            self.told.copy(),
            self.failures.copy(),
            self.requests.copy(),
            self.results.copy(),
            self.ending,
            self.bare,
            self.due_ms,
            self.gates.copy(),
            self.closed.copy(),
            list(self.queue),
            list(self.given),
            self.over,
            self.cursors.copy(),
            self.web.copy(),
            None if self.acp is None else self.acp.copy(),
            self.past,
        )

    def bound(self) -> None:
        """Forget the oldest of what only serves pairing, until the state fits its limits."""
        while len(self.told) > TOLD:
            call = next(iter(self.told))
            self.past = past.added(self.past, self.told.pop(call).run, call, PAST)
        forget(self.calls, CALLS)
        forget(self.closed, CLOSED)
        forget(self.web.forms, FORMS)
        forget(self.web.begun, BEGUN)
        forget(self.web.asks, REQUESTS)
        if 360 * len(self.calls) + 110 * len(self.told) + self._waiting_bytes() > _ROOM:
            while (self.calls or self.told) and len(self.encode()) > _ROOM:
                forget(self.calls or self.told, len(self.calls or self.told) * 7 // 8)

    def _waiting_bytes(self) -> int:
        """No less than what everything else but calls takes."""
        waiting = len(self.results) + len(self.failures) + 1
        if self.run is not None:
            waiting += len(self.run.held) + len(self.run.doubts) + 1
        spawns = len(self.crew.foreground) + len(self.crew.background)
        held = (
            len(self.past)
            + 700 * len(self.gates)
            + 50 * len(self.closed)
            + 180 * (len(self.queue) + len(self.given))
        )
        held += 90 * len(self.cursors) + 110 * len(self.web.begun) + KEPT * 2 * len(self.web.forms)
        held += 120 * len(self.web.asks) + 520 * len(self.web.orders) + 60 * len(self.web.acked)
        if self.acp is not None:
            held += 250 * len(self.acp.turns) + KEPT * 2 * len(self.acp.prompts)
        return 1_000 + 310 * len(self.requests) + 4 * KEPT * waiting + 180 * spawns + held


def forget(table: dict[str, Any], limit: int) -> None:
    """Drop the oldest entries of `table` down to `limit`."""
    while len(table) > limit:
        del table[next(iter(table))]


def key(value: JSONValue) -> str | None:
    """A vendor's id as a key: itself when short and plain, else a digest of it. None: no id."""
    if not isinstance(value, str) or not value:
        return None
    if _PLAIN.fullmatch(value):
        return value
    return "#" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def clip(text: str, size: int = WORD) -> str:
    """A name within `size` bytes of JSON, without characters that a name has no use for."""
    plain = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text[:size])
    return plain.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def turn_of(value: JSONValue) -> Turn:
    """A vendor's turn id, which is a number or, in older payloads, a word."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else key(str(value))
    return key(value)


def keep(draft: Draft) -> Kept:
    """`draft` in a form that can be stored; data above `KEPT` bytes is cut and marked `truncated`."""
    data, subject = draft.data, draft.subject
    try:
        size = len(_ENCODER.encode((data, subject)))
    except UnicodeEncodeError:
        data, subject = _clean(data), None if subject is None else _clean(subject)
        size = len(_ENCODER.encode((data, subject)))
    whole = data
    for clip in _CLIPS:
        if size <= KEPT:
            break
        data = {name: _clip(value, clip) for name, value in list(whole.items())[:8]}
        data["truncated"] = True
        subject = None if subject is None else subject[:clip]
        size = len(_ENCODER.encode((data, subject)))
    return Kept(draft.type, data, subject, draft.capture.value, draft.severity.value)


def _clip(value: JSONValue, size: int, depth: int = 0) -> JSONValue:
    if isinstance(value, str):
        return value[:size]
    if isinstance(value, list):
        return [] if depth > 1 else [_clip(item, size, depth + 1) for item in value[:4]]
    if isinstance(value, dict):
        return {} if depth > 1 else {k: _clip(v, size, depth + 1) for k, v in list(value.items())[:4]}
    return value


def _clean(value: Any) -> Any:
    """The same with every lone surrogate replaced, which UTF-8 cannot carry."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value


def made(event_type: str, *, bare: bool, **data: JSONValue) -> Draft:
    """A draft of the reducer's own: ids and machine words, or nothing at capture `none`."""
    return Draft(event_type, {}, capture=Capture.NONE) if bare else Draft(event_type, data)


def with_data(draft: Draft, **more: JSONValue) -> Draft:
    """`draft` with more data, which is `metadata`: nothing is added at capture `none`."""
    if draft.capture is Capture.NONE:
        return draft
    data: JSONObject = {**draft.data, **more}
    return Draft(draft.type, data, draft.subject, draft.capture, draft.severity)


def with_subject(draft: Draft, subject: str) -> Draft:
    """`draft` about another subject."""
    return Draft(draft.type, draft.data, subject, draft.capture, draft.severity)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(SessionState)
