"""Commands to a session: one decision each, told as `control.accepted` or `control.rejected`.

What the front-end found wrong by itself (AEP-0004 §3) comes as a `Nack` and is only told; what depends on
the session is decided here, in the same step that changes the session. AEP lets `detail` ride from
`redacted` on; `code` is our own machine word and says the same at any level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handlers.aep.levels import Capture, JSONObject
from handlers.lifecycle.writer import Writer
from handlers.mapping.moments import Draft

Reason = Literal["unsupported", "unauthorized", "busy", "refused", "invalid"]


@dataclass(frozen=True, slots=True)
class Nack:
    """Why not. `code` is for programs, `detail` one sentence of ours without anybody's words."""

    reason: Reason
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`control.attention.respond`: `option` for the request `subject`, with words of the sender's or not."""

    subject: str
    option: str
    words: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """`control.attention.respond` to a request of `kimi web`: `approved` or `rejected`, with words or not."""

    subject: str
    option: str
    words: bool = False


@dataclass(frozen=True, slots=True)
class Respond:
    """`control.attention.respond` where both may be asked: read as one to a held gate, and to `kimi web`."""

    subject: str
    gate: Answer | Nack
    web: Decide | Nack


@dataclass(frozen=True, slots=True)
class Cancel:
    """`control.cancel` of the run."""


@dataclass(frozen=True, slots=True)
class Instruct:
    """`x.kimi-code.control.instruct`."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command by its `id`.

    `name` stands for its `(source, id)`: under it the acknowledgement is recorded and its words are kept.
    `by` is who sent it, `level` the capture level of what is told about it.
    """

    id: str
    name: str
    act: Answer | Instruct | Decide | Respond | Cancel | Nack
    by: str | None = None
    level: Capture = Capture.METADATA


def accept(w: Writer, command: Command, *, run: str | None) -> JSONObject:
    """The command will be tried."""
    return _tell(w, command, "control.accepted", {}, run) | {"accepted": True}


def reject(w: Writer, command: Command, nack: Nack, *, run: str | None = None) -> JSONObject:
    """The command will not be tried."""
    data: JSONObject = {"reason": nack.reason, "code": nack.code}
    if command.level.allows(Capture.REDACTED):
        data["detail"] = nack.detail
    if run is None and w.state.run is not None:
        run = w.state.run.id
    return _tell(w, command, "control.rejected", data, run) | {"accepted": False, "code": nack.code}


def _tell(w: Writer, command: Command, kind: str, data: JSONObject, run: str | None) -> JSONObject:
    bare = command.level is Capture.NONE
    draft = Draft(kind, {} if bare else data, capture=command.level)
    event_id = w.emit(draft, run=run, cause=command.id)
    w.acks.append((command.name, event_id))
    return {"ack": event_id}
