"""`GET /metrics`: what the process has counted, for Prometheus (text format 0.0.4).

No label names a tenant, a session, a source or a tool: labels are reasons and channels out of our own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from starlette.requests import Request
from starlette.responses import Response

from handlers.counters import BOUNDS, Histogram
from handlers.service import Service
from handlers.tokens import Right

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Prefix of a counter, the metric it is a part of, and the label that its last part is the value of.
_FAMILIES = (
    ("hooks.stored.", "aep_hooks_total", "stored", "Hooks answered, by whether their event was stored."),
    ("moments.unstored.", "aep_dropped_total", "reason", "What was observed and could not be stored."),
    ("refused.", "aep_refused_total", "reason", "Requests refused."),
    ("commands.refused.", "aep_commands_refused_total", "reason", "Commands refused before their session."),
    ("commands.rejected.", "aep_commands_rejected_total", "reason", "Commands a session said no to."),
    ("events.out.", "aep_events_out_total", "binding", "Events handed to consumers."),
)
_HELP = {
    "events.stored": "Events of our own sessions stored.",
    "posted.events": "Events of other emitters taken.",
    "frames.web.received": "Frames of kimi web taken.",
    "acp.lines": "Lines of the ACP tee taken.",
    "commits.conflicts": "Commits that another replica overtook, and that were reduced again.",
    "redis.retries": "Calls to Redis sent again because their answer was lost.",
    "states.newer": "Events told as fallbacks, because a newer version had written their session's state.",
    "states.unreadable": "Sessions begun anew, because their stored state could not be read.",
    "hooks.limited": "Hooks let go unobserved, because their token was over its rate.",
    "streams.dropped": "Events of low severity not sent to slow consumers of /stream.",
    "sockets.dropped": "Events of low severity not sent to slow consumers of /socket.",
    "sockets.overrun": "Consumers of /socket let go because they were too slow.",
}


async def metrics(request: Request) -> Response:
    """The metrics, for whoever may watch (401 or 403 for everybody else)."""
    service: Service = request.app.state.service
    service.gate.admit(request.scope, Right.WATCH)
    bound = await service.relay_bound()
    body = "".join(f"{line}\n" for line in exposition(service, relay=bound))
    response = Response(body, media_type=CONTENT_TYPE)
    response.headers["Cache-Control"] = "no-store"
    return response


def exposition(service: Service, *, relay: bool) -> Iterator[str]:
    """The lines of the text format, without their ends."""
    counters = service.counters
    yield from _metric("aep_build_info", "gauge", "The version that runs.", [(f'version="{_version()}"', 1)])
    yield from _metric("aep_up", "gauge", "1 while events can be stored.", [("", service.problem() is None)])
    yield from _metric("aep_uptime_seconds", "gauge", "Since the start.", [("", service.uptime_ms / 1000)])
    yield from _metric("aep_consumers", "gauge", "Consumers connected.", [("", service.hub.consumers)])
    yield from _metric("aep_held", "gauge", "Tool calls held for an answer.", [("", len(service.holding))])
    yield from _metric("aep_relay_bound", "gauge", "1 while a relay link is bound.", [("", relay)])
    reader = service.reader
    yield from _metric("aep_feed_connected", "gauge", "1 while the feed is read.", [("", reader.connected)])
    yield from _metric("aep_feed_missed_total", "counter", "Commits missed by us.", [("", reader.missed)])
    yield from _metric(
        "aep_feed_restarts_total", "counter", "Times Redis lost the feed's end.", [("", reader.restarts)]
    )
    yield from _metric(
        "aep_clock_offset_seconds",
        "gauge",
        "This process's clock minus that of Redis.",
        [("", (service.offset_ms or 0) / 1000)],
    )
    yield from _histogram("aep_hook_seconds", "Handling of a hook, without a hold.", counters.hook)
    yield from _histogram("aep_commit_seconds", "From a moment's arrival to its commit.", counters.commit)
    yield from _histogram("aep_feed_lag_seconds", "From a commit to its delivery here.", counters.feed_lag)
    values = counters.snapshot()
    for prefix, name, label, text in _FAMILIES:
        part = {key: values.pop(key) for key in list(values) if key.startswith(prefix)}
        series = [(f'{label}="{_word(key[len(prefix) :])}"', value) for key, value in part.items()]
        yield from _metric(name, "counter", text, series)
    for key in _HELP:
        values.setdefault(key, 0)
    for key, value in sorted(values.items()):
        name = f"aep_{re.sub(r'[^a-z0-9]+', '_', key.lower())}_total"
        yield from _metric(name, "counter", _HELP.get(key, key), [("", value)])


def _metric(name: str, kind: str, text: str, series: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in series:
        yield f"{name}{{{labels}}} {value:.10g}" if labels else f"{name} {value:.10g}"


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    seen = 0
    for bound, count in zip(BOUNDS, histogram.buckets, strict=False):
        seen += count
        yield f'{name}_bucket{{le="{bound:g}"}} {seen}'
    yield f'{name}_bucket{{le="+Inf"}} {histogram.count}'
    yield f"{name}_sum {histogram.total:.10g}"
    yield f"{name}_count {histogram.count}"


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _version() -> str:
    try:
        return _word(version("aep-kimi"))
    except PackageNotFoundError:
        return "unknown"
