"""The frames of a duplex connection (AEP-0003 §2, §3.5, §4, §6.5). Pure: dictionaries in, dictionaries out.

A frame's `type` has no dot; whatever has one is an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handlers.aep.envelope import AEP_VERSION
from handlers.aep.filters import Filter, parse_filter
from handlers.aep.levels import Capture, JSONObject, JSONValue
from handlers.errors import FrameRefused, InvalidFilter

Role = Literal["emitter", "consumer", "both"]

_LONGEST_ID = 256
_ROLES: dict[str, Role] = {"emitter": "emitter", "consumer": "consumer", "both": "both"}


@dataclass(frozen=True, slots=True)
class Hello:
    """What the other side said of itself. `control` and `emits` are kept verbatim for the roster."""

    role: Role
    agent: str | None
    instance: str | None
    control: JSONObject | None
    emits: list[JSONValue] | None

    @property
    def emitting(self) -> bool:
        return self.role in ("emitter", "both")

    @property
    def consuming(self) -> bool:
        return self.role in ("consumer", "both")

    @property
    def accepts(self) -> frozenset[str]:
        """The commands it takes; its declaration is authoritative (AEP-0004 §4.2)."""
        listed = (self.control or {}).get("accepts")
        return (
            frozenset(entry for entry in listed if isinstance(entry, str))
            if isinstance(listed, list)
            else frozenset()
        )


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscribe frame. `resume` is its `from` member as it came, None when it has none."""

    id: str
    filter: Filter
    wanted: JSONObject
    capture: Capture | None
    resume: JSONValue


def is_event(frame: JSONObject) -> bool:
    """Whether a frame is an event (its type has a dot)."""
    kind = frame.get("type")
    return isinstance(kind, str) and "." in kind


def parse_hello(frame: JSONObject) -> Hello:
    """The first frame of a connection. Raises `FrameRefused` with the code that goes before the close."""
    if frame.get("type") != "hello":
        raise FrameRefused("hello-required", "the first frame must be hello")
    versions = frame.get("versions")
    if not isinstance(versions, list) or AEP_VERSION not in versions:
        raise FrameRefused("version-unsupported", f"this endpoint speaks AEP {AEP_VERSION}")
    role = _ROLES.get(str(frame.get("role")))
    if role is None:
        raise FrameRefused("hello-required", "role is emitter, consumer or both")
    identity = frame.get("identity")
    named = identity if isinstance(identity, dict) else {}
    agent, instance = named.get("agent"), named.get("instance")
    if role != "consumer" and not (isinstance(agent, str) and agent):
        raise FrameRefused("hello-required", "an emitter names itself: identity.agent")
    capabilities = frame.get("capabilities")
    declared = capabilities if isinstance(capabilities, dict) else {}
    control, emits = declared.get("control"), declared.get("emits")
    return Hello(
        role=role,
        agent=agent if isinstance(agent, str) else None,
        instance=instance if isinstance(instance, str) else None,
        control=control if isinstance(control, dict) else None,
        emits=emits if isinstance(emits, list) else None,
    )


def frame_id(frame: JSONObject) -> str:
    """The `id` of a request. Raises `FrameRefused` when there is none to answer to."""
    value = frame.get("id")
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_ID:
        raise FrameRefused("invalid-filter", f"id must be a string of 1 to {_LONGEST_ID} characters")
    return value


def parse_subscribe(frame: JSONObject) -> Subscribe:
    """A subscribe frame, but for its positions. Raises `FrameRefused` from the closed set of codes."""
    identity = frame_id(frame)
    wanted = frame.get("filter", {})
    try:
        filter = parse_filter(wanted)
    except InvalidFilter as error:
        raise FrameRefused("invalid-filter", str(error), id=identity) from None
    assert isinstance(wanted, dict)
    capture = frame.get("capture")
    if capture is not None and capture not in frozenset(Capture):
        raise FrameRefused("invalid-filter", "capture is none, metadata, redacted or full", id=identity)
    return Subscribe(
        id=identity,
        filter=filter,
        wanted=wanted,
        capture=Capture(str(capture)) if capture is not None else None,
        resume=frame.get("from"),
    )


def refusal(error: FrameRefused) -> JSONObject:
    """The error frame of a refusal."""
    frame: JSONObject = {"type": "error"}
    if error.id is not None:
        frame["id"] = error.id
    if error.cause is not None:
        frame["cause"] = error.cause
    frame["code"] = error.code
    if error.code == "version-unsupported":
        frame["versions"] = [AEP_VERSION]
    frame["detail"] = error.detail
    return frame


def exhausted(subscription: str, session: str, epoch: int, seq: int) -> JSONObject:
    """AEP-0003 §5."""
    return {
        "type": "replay-exhausted",
        "sub": subscription,
        "session": session,
        "earliest": {"epoch": epoch, "seq": seq},
    }


def closing(reason: str, delivered: list[JSONValue]) -> JSONObject:
    """The frame before a deliberate close (AEP-0003 §3.5.4)."""
    return {"type": "closing", "reason": reason, "delivered": delivered}
