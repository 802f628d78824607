"""The registered types of AEP 0.1: status, scope, and the payload of each (AEP-0002 §4-5, AEP-0004 §2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from handlers.aep.levels import Capture
from handlers.aep.shapes import (
    AMOUNT,
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STRING,
    Shape,
    list_of,
    obj,
    one_of,
)

Status = Literal["mandatory", "optional", "reserved"]
Scope = Literal["session", "agent", "command"]

CATEGORIES: Final = (
    "agent",
    "session",
    "run",
    "progress",
    "tool",
    "delegation",
    "attention",
    "resource",
    "error",
    "state",
    "assessment",
    "message",
    "control",
    "x",
)
NACK_REASONS: Final = ("unsupported", "unauthorized", "busy", "refused", "invalid")
RUN_TERMINALS: Final = frozenset({"run.finished", "run.failed", "run.cancelled"})
ATTENTION_TERMINALS: Final = frozenset({"attention.resolved", "attention.timeout"})

_LEGAL_TYPE = re.compile(
    rf"(?:{'|'.join(CATEGORIES[:-1])})(?:\.[a-z0-9_]+)+|x\.[a-z0-9_-]+\.[a-z0-9_]+(?:\.[a-z0-9_]+)+"
)
_EXTENSION_COMMAND = re.compile(r"x\.[a-z0-9_-]+\.control\..+")


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One registered type. `payload` is None where AEP leaves it to a later document."""

    status: Status
    scope: Scope
    payload: Shape | None

    @property
    def levels(self) -> Mapping[str, Capture]:
        """The capture level of every top-level field."""
        fields = self.payload.fields if self.payload else {}
        return {name: shape.level for name, shape in fields.items()}

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the required top-level fields."""
        fields = self.payload.fields if self.payload else {}
        return tuple(name for name, shape in fields.items() if shape.required)


def is_legal(event_type: str) -> bool:
    """Whether a string is a legal type: a category of AEP-0002 §3 or `x.{vendor}.{category}.{rest}`."""
    return _LEGAL_TYPE.fullmatch(event_type) is not None


def scope_of(event_type: str) -> Scope:
    """The scope of any type: `agent` has no session, `command` no position of ours (AEP-0001 §5.2)."""
    if event_type.startswith("agent."):
        return "agent"
    if event_type in _UNPOSITIONED or _EXTENSION_COMMAND.fullmatch(event_type):
        return "command"
    return "session"


def payload_of(event_type: str) -> Shape | None:
    """The payload's shape, None for a type outside the registry."""
    spec = TYPES.get(event_type)
    return spec.payload if spec else None


_USAGE = {"gen_ai.usage.input_tokens": COUNT, "gen_ai.usage.output_tokens": COUNT}
_COST = obj(
    currency=STRING.req,
    total=AMOUNT,
    prompt=AMOUNT,
    completion=AMOUNT,
    cache=AMOUNT,
    reasoning=AMOUNT,
)
_TOOL = obj(name=STRING.req, call_id=STRING).req
_ERROR = obj(type=STRING, message=STRING.redacted)
_LINEAGE = obj(session=STRING, run=STRING, agent=STRING)
_TASK = obj(id=STRING, title=STRING.redacted)
_CHOICES = list_of(obj(id=STRING.req, label=STRING.req))
_FIELD = Shape(
    "object",
    fields={
        "id": STRING.req,
        "type": one_of("string", "number", "boolean", "select").req,
        "label": STRING.req,
        "required": BOOLEAN,
        "multi": BOOLEAN,
        "other": BOOLEAN,
        "choices": _CHOICES,
        "min": NUMBER,
        "max": NUMBER,
    },
    needed_with=(("type", "select", "choices"),),
)
_ANSWER = obj(option=STRING, text=STRING.redacted, values=obj()).req
_DOCUMENTS = list_of(
    obj(id=STRING, score=NUMBER, content_redacted=STRING.redacted, content=STRING.full, metadata=obj())
)
_SPAN = {"start": INTEGER, "end": INTEGER}
_CITATION = obj(
    source=obj(id=STRING, uri=STRING.redacted, title=STRING.redacted),
    cited_text_redacted=STRING.redacted,
    cited_text=STRING.full,
    offset=obj(char=obj(_SPAN), page=obj(_SPAN, page=INTEGER), block=obj(_SPAN, block=INTEGER)),
    document_index=COUNT,
)
_GUARDRAIL = obj(
    stage=one_of("input", "output"),
    verdict=one_of("allowed", "flagged", "blocked", "modified"),
    categories=list_of(obj(name=STRING, score=NUMBER)),
    detector=obj(name=STRING, version=STRING),
    explanation=STRING.redacted,
)


def _mandatory(fields: Mapping[str, Shape] | None = None, /, **more: Shape) -> TypeSpec:
    return TypeSpec("mandatory", "session", obj(fields or {}, **more))


def _optional(fields: Mapping[str, Shape] | None = None, /, **more: Shape) -> TypeSpec:
    return TypeSpec("optional", "session", obj(fields or {}, **more))


def _agent(**fields: Shape) -> TypeSpec:
    return TypeSpec("optional", "agent", obj(fields))


def _command(**fields: Shape) -> TypeSpec:
    return TypeSpec("optional", "command", obj(fields))


TYPES: Final[Mapping[str, TypeSpec]] = {
    "session.started": _mandatory(
        {"gen_ai.request.model": STRING},
        label=STRING.redacted,
        parent=obj(session=STRING.req, run=STRING, agent=STRING),
        client=obj(name=STRING.req, version=STRING),
        cwd=STRING.redacted,
    ),
    "session.ended": _mandatory(
        reason=one_of("normal", "error", "timeout", "killed", "compaction"), duration_ms=COUNT, runs=COUNT
    ),
    "run.started": _mandatory(
        _USAGE,
        trigger=one_of("user", "schedule", "agent", "control", "resume"),
        prompt=STRING.redacted,
        cost=_COST,
    ),
    "run.finished": _mandatory(_USAGE, duration_ms=COUNT, summary=STRING.redacted, cost=_COST),
    "run.failed": _mandatory(reason=STRING.req, error=_ERROR, duration_ms=COUNT),
    "run.cancelled": _mandatory(
        by=one_of("user", "control", "policy", "shutdown"), reason=STRING.redacted, duration_ms=COUNT
    ),
    "tool.requested": _mandatory(
        tool=_TOOL, args_digest=STRING, args_redacted=obj().redacted, args=obj().full
    ),
    "tool.completed": _mandatory(
        _USAGE,
        tool=_TOOL,
        duration_ms=COUNT,
        status=STRING,
        result_digest=STRING,
        result_redacted=Shape("object|string").redacted,
        result=Shape("object|string").full,
        cost=_COST,
    ),
    "tool.failed": _mandatory(tool=_TOOL, error=_ERROR.req, duration_ms=COUNT),
    "tool.denied": _mandatory(tool=_TOOL, by=one_of("policy", "user_setting", "runtime").req, rule=STRING),
    "attention.requested": _mandatory(
        kind=one_of("permission", "input", "auth", "review", "form", "other").req,
        prompt=STRING.req,
        options=_CHOICES,
        fields=list_of(_FIELD),
        expires_at=STRING,
        respond_via=list_of(one_of("control", "oob")),
        context=obj().full,
    ),
    "attention.answered": _mandatory(answer=_ANSWER, by=STRING, via=one_of("control", "oob")),
    "attention.resolved": _mandatory(
        resolution=one_of("answered", "auto", "dismissed").req, latency_ms=COUNT
    ),
    "attention.timeout": _mandatory(after_ms=COUNT),
    "session.compacted": _optional(
        _USAGE, trigger=STRING, strategy=STRING, estimated_token_count=COUNT, forgotten=COUNT
    ),
    "run.step.started": _optional(name=STRING.redacted, initial_num_steps=COUNT),
    "run.step.finished": _optional(status=STRING),
    "progress.status": _optional(
        message=STRING.redacted, phase=STRING, percent=Shape("number", minimum=0, maximum=100)
    ),
    "progress.task.planned": _optional(task=_TASK, parent=STRING),
    "progress.task.completed": _optional(task=_TASK, status=STRING),
    "progress.artifact.produced": _optional(
        artifact=obj(id=STRING, name=STRING.redacted, mime=STRING, bytes=COUNT, uri=STRING.redacted)
    ),
    "delegation.subagent.started": _optional(child=_LINEAGE, agent_type=STRING, role=STRING),
    "delegation.subagent.stopped": _optional(
        child=_LINEAGE, agent_type=STRING, status=STRING, duration_ms=COUNT
    ),
    "attention.routed": _optional(to=STRING, via=STRING),
    "agent.presence": _agent(state=one_of("online", "offline", "busy").req),
    "agent.idle": _agent(since_ms=COUNT, reason=STRING),
    "agent.health": _agent(status=one_of("ok", "degraded", "failing").req, detail=STRING.redacted),
    "agent.heartbeat": _agent(tick=COUNT, interval_ms=COUNT),
    "error.raised": _optional(error=_ERROR, code=STRING, fatal=BOOLEAN),
    "state.snapshot": _optional(state=obj().redacted, key=STRING, rev=COUNT),
    "state.delta": _optional(delta=list_of(obj()).redacted, key=STRING, rev=COUNT),
    "resource.retrieval.requested": _optional(
        query=STRING.redacted, query_digest=STRING, corpus=STRING, top_k=COUNT
    ),
    "resource.retrieval.returned": _optional(
        documents=_DOCUMENTS, count=COUNT, corpus=STRING, duration_ms=COUNT
    ),
    "resource.retrieval.reranked": _optional(
        query=STRING.redacted,
        query_digest=STRING,
        model=STRING,
        top_k=COUNT,
        input_documents=_DOCUMENTS,
        output_documents=_DOCUMENTS,
        count=COUNT,
        duration_ms=COUNT,
    ),
    "resource.citation.recorded": _optional(citations=list_of(_CITATION), count=COUNT),
    "assessment.evaluation.recorded": _optional(
        {
            "gen_ai.evaluation.name": STRING,
            "gen_ai.evaluation.score.value": NUMBER,
            "gen_ai.evaluation.score.label": STRING,
            "gen_ai.evaluation.explanation": STRING.redacted,
        },
        evaluator=STRING,
    ),
    "assessment.feedback.received": _optional(
        rating=NUMBER,
        label=STRING,
        comment=STRING.redacted,
        correction=STRING.redacted,
        source=STRING,
    ),
    "assessment.guardrail.recorded": _optional(guardrail=_GUARDRAIL),
    "message.user.submitted": TypeSpec("reserved", "session", None),
    "message.agent.replied": TypeSpec("reserved", "session", None),
    "control.attention.respond": _command(answer=_ANSWER),
    "control.cancel": _command(scope=one_of("run", "session").req, reason=STRING.redacted),
    "control.pause": _command(),
    "control.resume": _command(),
    "control.accepted": _optional(),
    "control.rejected": _optional(reason=one_of(*NACK_REASONS).req, detail=STRING.redacted),
}

# what another party says about a session of ours carries no position (AEP-0001 §5.2)
_UNPOSITIONED: Final = frozenset(
    {name for name, spec in TYPES.items() if spec.scope == "command"} | {"attention.routed"}
)

ADDED: Final[Mapping[str, Mapping[str, Capture]]] = {
    "attention.answered": {"label": Capture.REDACTED},
    "delegation.subagent.started": {"prompt": Capture.REDACTED},
    "delegation.subagent.stopped": {"response": Capture.REDACTED},
}
"""Content-bearing members that our mappings add to registered types, with the level they need. No schema
knows them, so a hop would take them for metadata (AEP-0002 §5.1 rule 4); ours does not."""
