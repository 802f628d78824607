"""Reading vendor fields that may hold anything, and shaping a draft at its capture level.

Every reader answers None for what is missing or of the wrong kind, so that a payload can never make
an invalid event. A metadata field takes machine words only: prose in a place where the vendor puts a
word is content, and content does not ride at `metadata` (AEP-0003 §9.2).
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from handlers.aep.canonical import digest
from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity
from handlers.mapping.moments import Draft

if TYPE_CHECKING:
    from handlers.aep.capture import Posture

UNKNOWN_SESSION = "unknown"
TEXT_LIMIT = 256 * 1024
"""Characters of one free text; a longer one is left out and the event marked `truncated`."""

_NAME_LIMIT = 256
_MAX_COUNT = 2**53 - 1
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}")


def text(value: JSONValue) -> str | None:
    """A non-empty string, whole."""
    return value if isinstance(value, str) and value else None


def name(value: JSONValue) -> str | None:
    """A non-empty string of at most 256 characters; a longer one is cut."""
    return value[:_NAME_LIMIT] if isinstance(value, str) and value else None


def token(value: JSONValue) -> str | None:
    """A machine word of at most 128 characters: no blanks, nothing that could be prose."""
    return value if isinstance(value, str) and _TOKEN.fullmatch(value) else None


def count(value: JSONValue) -> int | None:
    """A whole number from 0 to 2^53-1, as a number without fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= _MAX_COUNT or value != int(value):
        return None
    return int(value)


def flag(value: JSONValue) -> bool | None:
    return value if isinstance(value, bool) else None


def table(value: JSONValue) -> JSONObject:
    """An object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def session_id(value: JSONValue) -> str:
    """The vendor's id verbatim; `unknown` when absent, empty or not a string."""
    return text(value) or UNKNOWN_SESSION


def timestamp_ms(value: JSONValue) -> int | None:
    """An RFC 3339 time with its zone, as Unix milliseconds."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None or moment.year < 1970:
        return None
    return round(moment.timestamp() * 1000)


def parts_text(value: JSONValue) -> str | None:
    """The text of a prompt: a string as it is, or the text parts of a content-part array, one a line.

    Media parts are skipped unread: they may hold tens of megabytes of base64 (kimi-code hook runner).
    """
    if isinstance(value, str):
        return value or None
    if not isinstance(value, list):
        return None
    texts = [
        part["text"]
        for part in value
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    return "\n".join(t for t in texts if isinstance(t, str) and t) or None


# Labels of the vendor's own dialogs; any other may be the model's words (plan review), which is content.
_DIALOG_LABELS = frozenset(
    {
        "Approve",
        "Approve once",
        "Approve for this session",
        "Reject",
        "Reject with feedback",
        "Reject and Exit",
        "Revise",
    }
)


@lru_cache(maxsize=1024)
def severity(event_type: str) -> Severity:
    """DESIGN §4 rule 12."""
    if event_type == "attention.requested":
        return Severity.NOTICE
    if event_type in ("tool.failed", "tool.denied"):
        return Severity.WARNING
    if event_type == "run.failed":
        return Severity.ERROR
    if event_type.startswith(("x.", "progress.")):
        return Severity.DEBUG
    return Severity.INFO


class Shape:
    """One draft in the making: each field is offered with its level, and kept if the posture allows it."""

    __slots__ = ("_data", "_posture", "_truncated", "level", "type")

    def __init__(self, event_type: str, posture: Posture) -> None:
        self.type = event_type
        self.level = posture.level(event_type)
        self._posture = posture
        self._data: JSONObject = {}
        self._truncated = False

    def put(self, **fields: JSONValue) -> Shape:
        """Structural fields (metadata); None is left out."""
        for key, value in fields.items():
            if value is not None:
                self._data[key] = value
        return self

    def prose(self, value: str | None) -> str | None:
        """Free text at this draft's level: none below `redacted`, redacted there, verbatim at `full`."""
        if value is None or not self.level.allows(Capture.REDACTED):
            return None
        if len(value) > TEXT_LIMIT:
            self._truncated = True
            return None
        return value if self.level is Capture.FULL else self._posture.redactor.text(value)

    def free(self, key: str, value: str | None) -> Shape:
        """A free-text field (redacted+)."""
        shown = self.prose(value)
        if shown is not None:
            self._data[key] = shown
        return self

    def structure(self, value: JSONObject) -> JSONObject | None:
        """An object that holds free text, under the rule of `prose`."""
        if not self.level.allows(Capture.REDACTED):
            return None
        if self.level is Capture.FULL:
            return value
        if _weight(value) > TEXT_LIMIT:
            self._truncated = True
            return None
        return table(self._posture.redactor.value(value))

    def full(self, key: str, value: JSONValue, kinds: tuple[type, ...]) -> Shape:
        """A verbatim value (full only), left out when it is of a kind that its schema refuses."""
        if self.level is Capture.FULL and isinstance(value, kinds):
            self._data[key] = value
        return self

    def label(self, value: str | None) -> Shape:
        """The chosen label: at metadata where it is the vendor's own word, else at redacted+."""
        return self.put(label=value) if value in _DIALOG_LABELS else self.free("label", value)

    def error(self, kind: str | None, message: str | None) -> JSONObject:
        """An `error_info` (AEP-0002 §5.2): the type always, the message at redacted+."""
        info: JSONObject = {} if kind is None else {"type": kind}
        shown = self.prose(message)
        if shown is not None:
            info["message"] = shown
        return info

    def draft(self, subject: str | None = None) -> Draft:
        """What was put together, about `subject`."""
        if self.level is Capture.NONE:
            return Draft(self.type, {}, subject, self.level, severity(self.type))
        if self._truncated:
            self._data["truncated"] = True
        return Draft(self.type, self._data, subject, self.level, severity(self.type))


def bare(event_type: str, level: Capture) -> Draft:
    """A draft that says that something happened, and nothing more."""
    return Draft(event_type, {}, None, level, severity(event_type))


def _weight(value: JSONValue) -> int:
    """Characters in all strings of a value."""
    total, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, list):
            rest.extend(one)
        elif isinstance(one, dict):
            total += sum(len(key) for key in one)
            rest.extend(one.values())
    return total


def digest_of(value: JSONValue) -> str | None:
    """`*_digest` over the original (AEP-0003 §9.3); None when there is no value."""
    return None if value is None else digest(value)
