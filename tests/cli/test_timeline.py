"""`aep-kimi timeline`: a session as a tree."""

from __future__ import annotations

import json
from typing import Any

from deploy.cli import timeline
from tests.app.processes import processes
from tests.app.replica import fresh_prefix
from tests.app.test_serve import post
from tests.cli.test_tail import command
from tests.servers import AnyServer


def event(identity: str, seq: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"id": identity, "seq": seq, "type": kind, "source": "s", "session": "s", **more}


STORY = [
    event("1", 1_000, "session.started"),
    event("2", 1_500, "run.started", run="r", cause="1"),
    event("3", 2_000, "tool.requested", run="r", cause="2", subject="Bash"),
    event("4", 2_250, "tool.completed", run="r", cause="3", subject="Bash", data={"duration_ms": 250}),
    event("5", 3_000, "progress.status", run="r", cause="not held"),
    event("6", 4_000, "run.finished", run="r", cause="2"),
]


def test_a_tree_by_cause() -> None:
    assert list(timeline.tree(STORY)) == [
        "    0.000s  session.started",
        "    0.500s  └─ run.started",
        "    1.000s     ├─ tool.requested Bash",
        "    1.250s     │  └─ tool.completed Bash duration_ms=250",
        "    2.000s     ├─ progress.status",
        "    3.000s     └─ run.finished",
    ]


def test_a_ring_of_causes_is_still_told() -> None:
    ring = [event("1", 1, "a.b", cause="2"), event("2", 2, "c.d", cause="1"), event("3", 3, "e.f", cause="3")]
    lines = list(timeline.tree(ring))
    assert len(lines) == 3


def test_a_graph() -> None:
    lines = list(timeline.graph(STORY))
    assert lines[0] == "digraph session {"
    assert '  "2" -> "3";' in lines
    assert lines[-1] == "}"


def test_end_to_end(redis_server: AnyServer) -> None:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_HOOK_TIMEOUT_MS": "9000",
    }
    with processes(1, environment) as (process,):
        for name in ("SessionStart", "UserPromptSubmit", "Stop"):
            assert post(process.url, {"hook_event_name": name, "session_id": "session_abc"})[1] == "yes"
        shown = command("timeline", "abc", "--url", process.url)
        assert shown.returncode == 0
        assert shown.stdout.splitlines()[0].endswith("session.started")
        assert "run.finished" in shown.stdout
        listed = command("timeline", "session_abc", "--json", "--url", process.url)
        assert [json.loads(line)["type"] for line in listed.stdout.splitlines()][-1] == "run.finished"
        assert command("timeline", "nobody", "--url", process.url).returncode == 1
        assert "digraph" in command("timeline", "session_abc", "--dag", "--url", process.url).stdout
