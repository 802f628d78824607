"""What mapping hands to the reducer: drafts of events, and the few facts that decide their fate.

Mapping is pure: no clock, no ids. A `Moment` is one thing that was observed on one channel. Its
`drafts` are what the conformance fixture pins for it, already at the capture level of the posture;
its `fallback` is what it degrades to when the reducer cannot vouch for the drafts (DESIGN §4 rule 2);
its `facts` are what the reducer needs and never more: no prompt, no argument, no output.

Every event makes several of these; a struct is made in a fifth of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from handlers.aep.levels import Capture, JSONObject, JSONValue, Severity

Channel = Literal["hook", "web", "acp"]


class Draft(Struct, frozen=True):
    """An event without identity: what is said, at which capture level, how urgently.

    `data` holds nothing above `capture`. `severity` follows DESIGN §4 rule 12.
    """

    type: str
    data: JSONObject = field(default_factory=dict)
    subject: str | None = None
    capture: Capture = Capture.METADATA
    severity: Severity = Severity.INFO


class Moment(Struct, frozen=True):
    """One observed thing, mapped.

    `name` is the vendor's own word for it (`PreToolUse`, `turn.started`, `request:session/prompt`).
    `session` is the vendor's id verbatim, or `unknown`. `facts` values are scalars or small lists.
    `time_ms` is the frame's own timestamp in Unix milliseconds where the channel has one.

    `partial` is a tool terminal that lacks what the wire does not repeat: the tool's name (`data.tool`
    has `call_id` only, `subject` is not set). The reducer adds the name it recorded at the request and
    emits it instead of `drafts`; without a name it emits `drafts`, or the fallback when they are empty.
    """

    channel: Channel
    name: str
    session: str
    drafts: tuple[Draft, ...]
    fallback: Draft
    facts: Mapping[str, JSONValue] = field(default_factory=dict)
    time_ms: int | None = None
    partial: Draft | None = None
