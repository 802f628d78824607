"""What the sender of a command says, read strictly: options, words, scopes, or why it can never be right."""

from __future__ import annotations

from handlers.aep.levels import JSONObject, JSONValue
from handlers.lifecycle import orders
from handlers.lifecycle.commands import Answer, Cancel, Decide, Instruct, Nack
from handlers.lifecycle.gates import DENY, OPTIONS
from handlers.lifecycle.instructions import TEXT_LIMIT
from handlers.mapping.fields import table


def _said(answer: JSONValue) -> tuple[str | None, str] | Nack:
    """The option and the trimmed text of an answer to a request with options; one of them is there."""
    given = table(answer)
    option, text = given.get("option"), given.get("text")
    if "values" in given:
        return Nack("invalid", "no-form", "this request has options, not fields")
    if not isinstance(option, str | None) or not isinstance(text, str | None):
        return Nack("invalid", "bad-answer", "option and text are strings")
    words = (text or "").strip()
    if len(words) > TEXT_LIMIT:
        return Nack("invalid", "too-long", f"a text has at most {TEXT_LIMIT} characters")
    if option is None and not words:
        return Nack("invalid", "empty", "an answer needs an option or a text")
    return option, words


def read_answer(subject: str, answer: JSONValue) -> tuple[Answer | Nack, str | None]:
    """An answer to one of our gates (AEP-0008 §1): never allow but by its own word.

    Text that is an option's word is that option; any other text denies, and is the reason.
    """
    said = _said(answer)
    if isinstance(said, Nack):
        return said, None
    option, words = said
    if option is None:
        if words.lower() in OPTIONS:
            return Answer(subject, words.lower()), None
        return Answer(subject, DENY, words=True), words
    if option not in OPTIONS:
        return Nack("invalid", "unknown-option", f"the options are {' and '.join(OPTIONS)}"), None
    if option == DENY and words and words.lower() not in OPTIONS:
        return Answer(subject, DENY, words=True), words
    return Answer(subject, option), None


_APPROVE = {orders.APPROVED: orders.APPROVED, "approve": orders.APPROVED}
_REJECT = {orders.REJECTED: orders.REJECTED, "reject": orders.REJECTED}


def read_decision(subject: str, answer: JSONValue) -> tuple[Decide | Nack, str | None]:
    """An answer to an approval of `kimi web` (AEP-0008 §1): approved only by its own word.

    Text that is an option's id or label is that option; any other text rejects, and is the feedback.
    """
    said = _said(answer)
    if isinstance(said, Nack):
        return said, None
    option, words = said
    named = (_APPROVE | _REJECT).get(words.lower())
    if option is None:
        if named is not None:
            return Decide(subject, named), None
        return Decide(subject, orders.REJECTED, words=True), words
    if option not in orders.OPTIONS:
        return Nack("invalid", "unknown-option", f"the options are {' and '.join(orders.OPTIONS)}"), None
    if option == orders.REJECTED and words and named is None:
        return Decide(subject, orders.REJECTED, words=True), words
    return Decide(subject, option), None


def read_cancel(data: JSONObject) -> Cancel | Nack:
    """What a `control.cancel` asks for."""
    scope = data.get("scope")
    if scope == "run":
        return Cancel()
    if scope == "session":
        return Nack("refused", "no-session-end", "a session of kimi has no end that could be commanded")
    return Nack("invalid", "bad-scope", "scope is run or session")


def read_instruction(data: JSONObject) -> tuple[Instruct | Nack, str | None]:
    """What an `x.kimi-code.control.instruct` asks for."""
    text = data.get("text")
    if not isinstance(text, str) or not text.strip():
        return Nack("invalid", "empty", "an instruction needs a text"), None
    if len(text) > TEXT_LIMIT:
        return Nack("invalid", "too-long", f"an instruction has at most {TEXT_LIMIT} characters"), None
    return Instruct(), text.strip()
