"""What a session's state is made of: one small array for each thing that is remembered.

Their fields are stored in order, so one may be added at an end, and none may move.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from handlers.aep.levels import Capture, Severity
from handlers.lifecycle.names import Turn
from handlers.mapping.moments import Draft


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
    stamp: str = ""  # when the last frame taken was written, in its server's words

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
            self.stamp,
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
