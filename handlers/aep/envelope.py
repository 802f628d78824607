"""Finished events: the bytes that are stored, streamed and posted (AEP-0001 §5).

`severity` and `capture` are always written, so that a line read with `grep` or `jq` needs no defaults;
`epoch` is 0 for good and left out. `data` is left out at capture `none`, and only there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import quote

import orjson

from handlers.aep.fitting import fit, writable
from handlers.aep.levels import Capture, JSONObject, Severity
from handlers.aep.names import extension_type
from handlers.aep.registry import is_legal, scope_of
from handlers.aep.validation import check_payload, is_valid

AEP_VERSION: Final = "0.1"
SEQ_ORIGIN_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z in Unix milliseconds: where positions count from."""
EVENT_LIMIT: Final = 256 * 1024
UNKNOWN: Final = "unknown"

_LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "session": (),
    "command": ("seq",),
    "agent": ("session", "run", "step", "seq"),
}
_ORDER: Final = (
    *("aep", "id", "type", "subject", "time", "source", "agent"),
    *("session", "run", "step", "seq", "cause", "severity", "capture"),
)
_LAST_MS: Final = 253_402_300_799_999
_LONG_ATTRIBUTE: Final = 1024
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!#-;=?-~]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Drafted(Protocol):
    """What is said, without identity (`handlers.mapping.moments.Draft` is one)."""

    @property
    def type(self) -> str: ...
    @property
    def data(self) -> JSONObject: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def capture(self) -> Capture: ...
    @property
    def severity(self) -> Severity: ...


def source_uri(emitter: str, agent: str, session: str) -> str:
    """`aep://{emitter}/agent/{agent}/session/{session}`, each part percent-encoded (AEP-0001 §5.1 #6)."""
    if len(session) <= _LONG_ATTRIBUTE:
        return _known_source(emitter, agent, session)
    return _source(emitter, agent, session)


def _source(emitter: str, agent: str, session: str) -> str:
    return f"aep://{_part(emitter)}/agent/{_part(agent)}/session/{_part(session)}"


def position(last: int, now_ms: int) -> int:
    """The position after `last` at Unix time `now_ms`: it rises by itself and with the clock, so it needs
    no memory that survives (-1 for `last` when there is none)."""
    return max(last + 1, now_ms - SEQ_ORIGIN_MS, 0)


def rfc3339(ms: int) -> str:
    """A Unix time in milliseconds as RFC 3339 in UTC; outside 1970 to 9999 the nearest of them."""
    seconds, milliseconds = divmod(ms if 0 <= ms <= _LAST_MS else min(max(ms, 0), _LAST_MS), 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def finish(
    draft: Drafted,
    *,
    id: str,
    time_ms: int,
    source: str,
    agent: str,
    session: str,
    seq: int,
    run: str | None = None,
    step: str | None = None,
    cause: str | None = None,
    limit: int = EVENT_LIMIT,
) -> bytes:
    """The event's JSON, valid whatever the strings hold.

    Lone surrogates become U+FFFD, an empty session is `unknown`, empty optional attributes are left out.
    A type that is not legal, or whose payload breaks its schema, becomes `x.{agent}.{type}`. An event
    above `limit` bytes keeps its digests and loses its values, marked `"truncated": true` in `data`.
    Raises ValueError for what only a mistake of ours can bring: an empty `id`, a negative `seq`.
    """
    if not id or seq < 0:
        raise ValueError("an event needs an id and a position from 0")
    event_type, data = draft.type, draft.data
    left_out = _known_scope(event_type)
    if left_out is None:
        event_type = extension_type(agent, event_type)
        left_out = _LEFT_OUT[scope_of(event_type)]
    if not is_valid(event_type, data):
        event_type = extension_type(agent, event_type)
        left_out = _LEFT_OUT[scope_of(event_type)]
    event: dict[str, object] = {"aep": AEP_VERSION, "id": id, "type": event_type}
    if draft.subject:
        event["subject"] = draft.subject
    event["time"] = rfc3339(time_ms)
    event["source"] = _clean_source(source) if len(source) <= _LONG_ATTRIBUTE else _uri(source)
    event["agent"] = agent or UNKNOWN
    event["session"] = session or UNKNOWN
    if run:
        event["run"] = run
    if step:
        event["step"] = step
    event["seq"] = seq
    if cause:
        event["cause"] = cause
    event["severity"] = draft.severity
    event["capture"] = draft.capture
    for name in left_out:
        event.pop(name, None)
    if draft.capture is not Capture.NONE:
        event["data"] = data
    finished = _dump(event)
    if len(finished) <= limit:
        return finished
    return _fitted(event, draft, limit, {"session": session or UNKNOWN, "run": run, "step": step, "seq": seq})


@lru_cache(maxsize=1024)
def _known_scope(event_type: str) -> tuple[str, ...] | None:
    """What an event of this type may not have (AEP-0001 §5.2); None for a type that is not legal."""
    return _LEFT_OUT[scope_of(event_type)] if is_legal(event_type) else None


def _dump(event: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(event)
    except TypeError:
        return orjson.dumps(writable(event))


def _fitted(event: dict[str, object], draft: Drafted, limit: int, scoped: dict[str, object]) -> bytes:
    """The event within `limit` bytes; only its session and source may still carry it above.

    `scoped` has what the type's scope may have kept out, and the scope of another type lets in.
    """
    event.pop("data", None)
    bare = len(_dump(event))
    if bare > limit // 2:
        for name in ("id", "subject", "run", "step", "cause", "agent"):
            value = event.get(name)
            if isinstance(value, str) and len(value) > _LONG_ATTRIBUTE:
                event[name] = _marked(value)
        bare = len(_dump(event))
    event_type = str(event["type"])
    data = fit(event_type, draft.data, limit - bare - len(',"data":'))
    if draft.capture is not Capture.NONE and check_payload(event_type, data):
        event["type"] = extension_type(str(event["agent"]), event_type)
        left_out = _LEFT_OUT[scope_of(str(event["type"]))]
        known = scoped | event
        event = {
            name: known[name] for name in _ORDER if name not in left_out and known.get(name) not in (None, "")
        }
    if draft.capture is not Capture.NONE:
        event["data"] = data
    return _dump(event)


def _marked(value: str) -> str:
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{value[: _LONG_ATTRIBUTE - 33]}~{digest}"


def _part(text: str) -> str:
    encoded = quote(_SURROGATE.sub("\ufffd", text), safe="") or UNKNOWN
    # a path walks on `.` and `..`
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def _uri(source: str) -> str:
    if _URI.fullmatch(source):
        return source
    cleaned = quote(_SURROGATE.sub("\ufffd", source), safe="%:/?#[]@!$&'()*+,;=-._~")
    return cleaned if _URI.fullmatch(cleaned) else f"aep://{_part(source)}"


@lru_cache(maxsize=4096)
def _clean_source(source: str) -> str:
    return _uri(source)


_known_source = lru_cache(maxsize=4096)(_source)


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
