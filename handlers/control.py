"""Commands to our own sessions: read, decided once, acknowledged, and acknowledged again in the same bytes.

Whoever takes a command decides with one commit: the change of the session, the acknowledgement as an event
of its stream, and the record of it under the command's `(source, id)`; an answer to a call that is held here
is carried out by the same commit. A retry, on any replica, finds the
record in the way of its commit and puts those bytes on the feed again (AEP-0004 §3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from hashlib import sha256

from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.answers import read_answer, read_cancel, read_decision, read_instruction
from handlers.clock import Clock
from handlers.counters import Counters
from handlers.engine import Engine, Outcome, ack_name
from handlers.errors import FrameRefused
from handlers.held import words_name
from handlers.holding import Holding
from handlers.ingest import Posted
from handlers.lifecycle.bounds import COMMAND
from handlers.lifecycle.commands import Answer, Cancel, Command, Decide, Instruct, Nack, Respond
from handlers.lifecycle.instructions import EXPIRY_MS
from handlers.lifecycle.names import clip
from handlers.lifecycle.reducer import UNKNOWN
from handlers.mapping.fields import table
from handlers.settings import Settings
from handlers.tokens import OWNER_LABEL, Principal, Right
from state.errors import StateError
from state.foreign import Foreign
from state.keys import SessionKey
from state.sessions import Put, Sessions

log = logging.getLogger(__name__)

RESPOND = "control.attention.respond"
INSTRUCT = "x.kimi-code.control.instruct"
CANCEL = "control.cancel"
ACK_WINDOW_MS = 10_000
_DECIDE_SECONDS = 4.0
_AGAIN_SECONDS = 0.1
_BY = 64
_ORDERED = (Respond, Decide, Cancel)

Act = Answer | Instruct | Decide | Respond | Cancel | Nack
_WORDS_MS = 60_000

_UNSUPPORTED = {
    CANCEL: "a session that is seen through its hooks cannot be cancelled from here, only where it runs",
    RESPOND: "calls of this session are not held: AEP_KIMI_CONTROL is off",
    INSTRUCT: "this session takes no instructions: AEP_INSTRUCT is off",
}


class Control:
    """Takes commands for the sessions of this service (`handlers.commands.OwnCommands`)."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        sessions: Sessions,
        foreign: Foreign,
        holding: Holding,
        *,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._sessions = sessions
        self._foreign = foreign
        self._holding = holding
        self._clock = clock
        self._counters = counters
        self._pending: set[tuple[SessionKey, str]] = set()
        self._accepts = accepts(settings)
        # An acknowledgement says who was refused what, and no content of the session.
        self._level = max(settings.capture_attention, Capture.METADATA, key=lambda level: level.rank)

    def declaration(self) -> JSONObject:
        """What `hello` and the roster say of our sessions."""
        listed: list[JSONValue] = list(self._accepts)
        return {"accepts": listed, "ack_window_ms": ACK_WINDOW_MS}

    async def handle(self, principal: Principal, key: SessionKey, command: Posted) -> None:
        """Decide a command to the live session `key`, or acknowledge it again.

        The answer is an event on the session's stream. Raises `FrameRefused` where the session cannot say
        anything: it takes no commands at all, or Redis does not answer.
        """
        if not self._accepts or key.session == UNKNOWN:
            raise FrameRefused("unsupported", "sessions of this service take no commands", cause=command.id)
        name = command_name(command.source, command.id)
        if (key, name) in self._pending:
            # The one answer that is on its way answers every delivery.
            return
        self._pending.add((key, name))
        try:
            await self._decide(principal, key, command, name)
        finally:
            self._pending.discard((key, name))

    async def recall(self, keys: Sequence[SessionKey], command: Posted) -> bool:
        """Acknowledge again a command whose session may have ended since; whether it was known.

        Raises StateError.
        """
        name = command_name(command.source, command.id)
        for key in keys:
            recorded = await self._sessions.get(key, ack_name(name))
            if recorded is not None:
                await self._again(key, recorded)
                return True
        return False

    async def _decide(self, principal: Principal, key: SessionKey, command: Posted, name: str) -> None:
        act, words = self._read(principal, command)
        if isinstance(act, _ORDERED) and await self._recorded(key, name):
            return
        puts: tuple[Put, ...] = ()
        if words is not None:
            keep_ms = EXPIRY_MS if isinstance(act, Instruct) else self._settings.attention_timeout_ms
            said = words.encode("utf-8", "replace")
            puts = (Put(words_name(name), said, keep_ms + _WORDS_MS, once=False),)
        given = Command(
            id=command.id,
            name=name,
            act=act,
            by=responder(principal, command.event),
            level=self._level,
        )
        outcome = await self._commit(key, given, words, puts)
        if outcome.recorded is not None:
            await self._again(key, outcome.recorded)
        elif outcome.stored == "yes":
            code = outcome.reply.get("code")
            self._counters.add(f"commands.{'rejected.' + str(code) if code else 'accepted'}")
        elif outcome.stored == "no":
            self._counters.add("commands.unstored")
            raise FrameRefused(
                "busy", "Redis does not answer and nothing was done; send it again", cause=command.id
            )
        else:
            # It may stand: silence makes the sender try again, and then the record tells.
            self._counters.add("commands.unknown")

    async def _commit(
        self, key: SessionKey, given: Command, words: str | None, puts: tuple[Put, ...]
    ) -> Outcome:
        """Decide: where the call is held here together with its close, else for whoever holds it."""
        deadline = self._clock.steady() + _DECIDE_SECONDS
        closed = await self._holding.answer(key, given, words, puts)
        if closed is not None and closed.stored == "yes":
            return closed
        doubtful = closed is not None and closed.stored == "unknown"
        while True:
            at_ms = self._clock.now_ms()
            outcome = await self._engine.apply(key, (given,), at_ms=at_ms, deadline=deadline, puts=puts)
            if outcome.stored == "yes" or not doubtful:
                return outcome
            # What was sent first may stand: only its record, or the lack of it, tells.
            if self._clock.steady() + _AGAIN_SECONDS >= deadline:
                assert closed is not None
                return closed
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _recorded(self, key: SessionKey, name: str) -> bool:
        """Acknowledge again what was acknowledged after it had been carried out elsewhere."""
        try:
            recorded = await self._sessions.get(key, ack_name(name))
        except StateError:
            # The commit that follows will say so.
            return False
        if recorded is None:
            return False
        await self._again(key, recorded)
        return True

    async def _again(self, key: SessionKey, recorded: bytes) -> None:
        self._counters.add("commands.repeated")
        try:
            await self._foreign.pass_on(key, recorded)
        except StateError as error:
            log.debug("an acknowledgement could not be repeated: %s", error)

    def _read(self, principal: Principal, command: Posted) -> tuple[Act, str | None]:
        """What a command asks for, and the words that go with it."""
        kind = str(command.event["type"])
        if kind not in self._accepts:
            detail = _UNSUPPORTED.get(kind, "a session that is seen through its hooks does not take this")
            return Nack("unsupported", "unsupported", detail), None
        if not principal.authenticated or not principal.may(right(kind)):
            return Nack("unauthorized", "unauthorized", f"this token does not allow '{right(kind)}'"), None
        if len(command.id) > COMMAND:
            return Nack("invalid", "long-id", f"the id of a command has at most {COMMAND} characters"), None
        data = table(command.event.get("data"))
        if kind == INSTRUCT:
            return read_instruction(data)
        if kind == CANCEL:
            return read_cancel(data), None
        subject = command.event.get("subject")
        if not isinstance(subject, str) or not subject:
            return Nack("invalid", "no-subject", "subject must be the id of the attention.requested"), None
        gate, said = read_answer(subject, data.get("answer"))
        if not self._settings.answers_web:
            return gate, said
        web, told = read_decision(subject, data.get("answer"))
        return Respond(subject, gate, web), said or told


def accepts(settings: Settings) -> tuple[str, ...]:
    """The commands that our sessions take under these settings."""
    respond = (RESPOND,) if settings.control or settings.answers_web else ()
    cancel = (CANCEL,) if settings.answers_web else ()
    return respond + cancel + ((INSTRUCT,) if settings.instruct else ())


def right(kind: str) -> Right:
    """What a token must allow for a command of this type."""
    return Right.ANSWER if kind == RESPOND else Right.STEER


def command_name(source: str, command_id: str) -> str:
    """32 hex digits that stand for a command's `(source, id)`."""
    one, two = (text.encode("utf-8", "surrogatepass") for text in (source, command_id))
    return sha256(b"%d:%b%b" % (len(one), one, two)).hexdigest()[:32]


def responder(principal: Principal, event: JSONObject) -> str | None:
    """Whom an answer is by: the token's label where it has one, else what the sender calls itself."""
    if principal.label and principal.label != OWNER_LABEL:
        return clip(principal.label, _BY)
    agent = event.get("agent")
    return clip(agent, _BY) or None if isinstance(agent, str) else None
