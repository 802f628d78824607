"""Answers of the ACP wire joined to their requests: what one connection must remember between two lines.

A JSON-RPC answer names nothing but an id, so the method, the session and the tool call that it belongs to
come from its request. The memory is small, bounded and without content, so that any process can take the
next line: it is stored as JSON between batches. Taking a line is pure, and the same memory and line give the
same moment, so a batch that was taken half can be taken again.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from handlers.aep.levels import JSONObject, JSONValue
from handlers.errors import InvalidState
from handlers.mapping.acp import Kind, map_moment
from handlers.mapping.fields import UNKNOWN_SESSION, table, text
from handlers.mapping.moments import Moment

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

TO_AGENT, TO_CLIENT, END = "c2a", "a2c", "end"
GONE = "end"
"""Name of the moment at which a connection ended, for each session that it had."""

PENDING = 128
"""Requests of one direction that wait for their answer; the oldest are forgotten."""
SESSIONS = 64
LIMIT = 64 * 1024
"""Bytes of the stored memory."""
ID = 256
"""Bytes of a vendor's id; what is longer is not remembered."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,48}")
_HISTORY = "session/load"
_OPENERS = frozenset({"session/new", "session/load", "session/resume", "session/fork"})


class Request(Struct, array_like=True, frozen=True):
    """A request without its answer, as far as the answer needs it."""

    method: str
    session: str | None = None
    call: str | None = None  # the tool call of a permission request

    @property
    def params(self) -> JSONObject:
        known: JSONObject = {}
        if self.session is not None:
            known["sessionId"] = self.session
        if self.call is not None:
            known["toolCall"] = {"toolCallId": self.call}
        return known


class Joins(Struct, array_like=True):
    """What is known of one connection. `client` is the editor's name and version."""

    to_agent: dict[str, Request] = {}
    to_client: dict[str, Request] = {}
    sessions: dict[str, bool] = {}  # those that were spoken of, the latest at the end
    client: tuple[str, str | None] | None = None

    def encode(self) -> bytes:
        """The memory as JSON, at most `LIMIT` bytes: the oldest requests and sessions go first."""
        while len(encoded := _ENCODER.encode(self)) > LIMIT:
            for table_ in (self.to_agent, self.to_client, self.sessions):
                for key in list(table_)[: len(table_) // 4 + 1]:
                    del table_[key]
        return encoded

    @classmethod
    def decode(cls, encoded: bytes | None) -> Joins:
        """What `encode` wrote; a new memory for None. Raises `InvalidState` for anything else."""
        try:
            return Joins() if encoded is None else _DECODER.decode(encoded)
        except msgspec.MsgspecError as error:
            raise InvalidState(f"not the memory of a connection: {error}") from error

    def take(self, direction: str, frame: JSONObject, link: str, posture: Posture) -> list[Moment]:
        """The moments of one line: one as a rule, none for history, one for each session at the end.

        `link` names the connection in the facts.
        """
        if direction == END:
            return self._end(link, posture)
        method = text(frame.get("method"))
        if method is not None:
            moment = self._call(direction, method, frame, posture)
        else:
            moment = self._answer(direction, frame, posture)
        if moment is None:
            return []
        self._saw(moment.session)
        return [_linked(moment, link)]

    def _call(self, direction: str, method: str, frame: JSONObject, posture: Posture) -> Moment | None:
        params = table(frame.get("params"))
        kind: Kind = "request" if "id" in frame else "notification"
        if method == "session/update" and self._replays(params.get("sessionId")):
            return None
        asked: JSONObject = {}
        if method in ("$/cancel_request", "$/cancelRequest"):
            cancelled = self._asked(direction).get(_key(params.get("requestId", params.get("id"))))
            asked = {} if cancelled is None else cancelled.params
        moment = map_moment(kind, method, params, posture, asked=asked)
        if method == "initialize" and kind == "request":
            client = _short(moment.facts.get("client_name"))
            if client is not None:
                self.client = client, _short(moment.facts.get("client_version"))
        if kind == "notification":
            return moment
        ask = _key(frame["id"])
        pending = self._asked(direction)
        pending.pop(ask, None)
        pending[ask] = Request(
            _short(method) or "unknown",
            _short(params.get("sessionId")),
            _short(moment.facts.get("tool_call_id")),
        )
        while len(pending) > PENDING:
            del pending[next(iter(pending))]
        return replace(moment, facts={**moment.facts, "ask": ask})

    def _answer(self, direction: str, frame: JSONObject, posture: Posture) -> Moment | None:
        ask = _key(frame.get("id"))
        asked = self._asked(TO_CLIENT if direction == TO_AGENT else TO_AGENT).pop(ask, None)
        failed = "error" in frame
        if asked is None:
            # Whatever it answers was never seen; an error is told all the same.
            return map_moment("error", "", frame["error"], posture) if failed else None
        moment = map_moment(
            "error" if failed else "response",
            asked.method,
            frame["error"] if failed else frame.get("result"),
            posture,
            asked=asked.params,
        )
        facts = {**moment.facts, "ask": ask}
        if asked.method in _OPENERS and self.client is not None:
            facts["client_name"], facts["client_version"] = self.client
        return replace(moment, facts=facts)

    def _end(self, link: str, posture: Posture) -> list[Moment]:
        nothing = map_moment("notification", "connection/ended", None, posture)
        gone = replace(nothing, name=GONE, drafts=(), facts={})
        sessions = [session for session in self.sessions if session != UNKNOWN_SESSION]
        self.to_agent, self.to_client, self.sessions = {}, {}, {}
        return [_linked(replace(gone, session=session), link) for session in sessions]

    def _asked(self, direction: str) -> dict[str, Request]:
        return self.to_agent if direction == TO_AGENT else self.to_client

    def _replays(self, session: JSONValue) -> bool:
        """Whether what is told of `session` now is its history: it is being loaded."""
        return any(asked.method == _HISTORY and asked.session == session for asked in self.to_agent.values())

    def _saw(self, session: str) -> None:
        if _short(session) is None:
            return
        self.sessions.pop(session, None)
        self.sessions[session] = True
        while len(self.sessions) > SESSIONS:
            del self.sessions[next(iter(self.sessions))]


def matters(moment: Moment) -> bool:
    """Whether a moment tells anything or ends something."""
    return (
        bool(moment.drafts)
        or moment.partial is not None
        or moment.name == GONE
        or moment.name in ("response:session/request_permission", "response:elicitation/create")
    )


def _linked(moment: Moment, link: str) -> Moment:
    return replace(moment, facts={**moment.facts, "link": link})


def _key(value: JSONValue) -> str:
    """A JSON-RPC id: `1` and `1.0` are one, `"1"` is another."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        plain = str(int(value)) if value == int(value) else str(value)
        return plain if len(plain) <= 48 else _digest(plain)
    if isinstance(value, str):
        return f"'{value}" if _PLAIN.fullmatch(value) else _digest(value)
    return "-"


def _digest(value: str) -> str:
    return "#" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _short(value: JSONValue) -> str | None:
    found = text(value)
    try:
        return found if found is not None and len(found.encode()) <= ID else None
    except UnicodeEncodeError:
        return None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Joins)
