"""From the real binary through our shim and the real service to AEP events, on both versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from handlers.aep.validation import check_event

from .kimi import Kimi
from .service import Event, Service, core, register, types, violations
from .tui import Tui
from .web import Web

TOOL_ENDS = ("tool.completed", "tool.failed", "tool.denied")
RUN_ENDS = ("run.finished", "run.failed", "run.cancelled")


def settled(kimi: Kimi, *wanted: str, ends: bool = True) -> Callable[[list[Event]], object]:
    """A check: these core types have come, and the session's end where the engine tells it of a `-p`."""
    goal = Counter([*wanted, *(["session.ended"] if ends and not kimi.v2 else [])])
    return lambda events: not goal - Counter(core(events))


def sound(events: list[Event]) -> None:
    """What holds for every stream: valid, in order, paired, one terminal each, nothing above metadata."""
    assert [problem for event in events for problem in check_event(event)] == []
    assert violations(events) == []
    positions = [event["seq"] for event in events]
    assert positions == sorted(set(positions))
    by_id = {event["id"]: event for event in events}
    assert len(by_id) == len(events)
    for event in events:
        level = event.get("capture", "metadata")
        assert level == "metadata" or (level == "redacted" and event["type"].startswith("attention."))
        assert event.get("cause") is None or event["cause"] in by_id
    runs = Counter(event["run"] for event in events if event["type"] in RUN_ENDS)
    assert set(runs.values()) <= {1}
    assert set(runs) <= {event["run"] for event in events if event["type"] == "run.started"}
    for event in events:
        if event["type"] in TOOL_ENDS and "cause" in event:
            assert by_id[event["cause"]]["type"] == "tool.requested"
            assert by_id[event["cause"]]["data"]["tool"] == event["data"]["tool"]


def before(events: list[Event], *order: str) -> None:
    """The first of each of these types come in this order."""
    places = [types(events).index(kind) for kind in order]
    assert places == sorted(places), types(events)


@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("plain", ["run.finished"]),
        ("bash_ok", ["tool.requested", "tool.completed", "run.finished"]),
        ("bash_fail", ["tool.requested", "tool.failed", "run.finished"]),
        ("several", ["tool.requested"] * 3 + ["tool.completed"] * 2 + ["tool.failed", "run.finished"]),
        (
            "subagent",
            [
                "tool.requested",
                "delegation.subagent.started",
                "delegation.subagent.stopped",
                "tool.completed",
                "run.finished",
            ],
        ),
        ("err500", ["run.failed"]),
        ("err401", ["run.failed"]),
    ],
)
def test_a_print_run(kimi: Kimi, service: Service, scenario: str, wanted: list[str]) -> None:
    register(kimi, service.hook_url)
    before_run = set(sessions(service))
    kimi.run_print(f"MOCK:{scenario}")
    (session,) = set(sessions(service)) - before_run
    wanted = ["session.started", "run.started", *wanted]
    events = service.wait(session, settled(kimi, *wanted))
    sound(events)
    assert Counter(core(events)) == Counter([*wanted, *([] if kimi.v2 else ["session.ended"])])
    before(events, "session.started", "run.started", wanted[-1])
    for kind in TOOL_ENDS:
        if kind in wanted:
            before(events, "run.started", "tool.requested", kind)
            assert all("duration_ms" in e["data"] for e in events if e["type"] == kind)
    terminal = next(e for e in events if e["type"] in RUN_ENDS)
    assert terminal["data"]["duration_ms"] >= 0
    if scenario == "subagent":
        before(events, "delegation.subagent.started", "run.finished")


def sessions(service: Service) -> list[str]:
    return [event["session"] for event in service.events()]


def test_a_resumed_session(kimi: Kimi, service: Service) -> None:
    register(kimi, service.hook_url)
    session = kimi.run_print("MOCK:plain").session
    assert session is not None
    kimi.run_print("MOCK:bash_ok", resume=session)
    wanted = ["session.started", "run.started", "run.finished"] * 2 + ["tool.requested", "tool.completed"]
    events = service.wait(session, settled(kimi, *wanted))
    sound(events)
    # the engine of 0.28 ends the session at each exit; a session ends once
    assert Counter(core(events)) == Counter([*wanted, *([] if kimi.v2 else ["session.ended"])])
    started = [e["data"]["trigger"] for e in events if e["type"] == "session.started"]
    assert started == ["startup", "resume"]
    assert len({e["run"] for e in events if e["type"] == "run.started"}) == 2


def test_a_background_subagent(kimi: Kimi, service: Service) -> None:
    """The child's stop does not end the parent's run, whichever comes first."""
    register(kimi, service.hook_url)
    session = kimi.run_print("MOCK:subagent_bg").session
    assert session is not None
    wanted = ["session.started", "run.started", "tool.requested", "tool.completed", "run.finished"]
    wanted.append("delegation.subagent.started")
    events = service.wait(session, settled(kimi, *wanted), timeout_s=20)
    sound(events)
    runs = [e["run"] for e in events if e["type"] == "run.started"]
    ended = [e["run"] for e in events if e["type"] in RUN_ENDS]
    assert sorted(runs) == sorted(ended)
    assert "run.failed" not in core(events)


def test_an_approval_in_the_web_ui(kimi: Kimi, service: Service) -> None:
    register(kimi, service.hook_url)
    with Web(kimi) as web:
        session = web.create()
        web.prompt(session, "MOCK:bash_ok")
        approval = web.pending(session)[0]["approval_id"]
        service.wait(session, settled(kimi, "attention.requested", ends=False))
        assert web.approve(session, approval).code == 0
        web.idle(session)
        wanted = ["session.started", "run.started", "tool.requested", "tool.completed", "run.finished"]
        wanted += ["attention.requested", "attention.answered", "attention.resolved"]
        events = service.wait(session, settled(kimi, *wanted, ends=False))
    sound(events)
    assert Counter(core(events)) == Counter(wanted)
    before(events, "tool.requested", "attention.requested", "attention.answered", "attention.resolved")
    request = next(e for e in events if e["type"] == "attention.requested")
    assert request["severity"] == "notice"
    assert request["data"]["kind"] == "permission"
    assert request["data"]["respond_via"] == ["oob"]
    assert {e["subject"] for e in events if e["type"] in ("attention.answered", "attention.resolved")} == {
        request["id"]
    }


def test_a_rejection_and_an_interrupt_in_the_terminal(kimi: Kimi, service: Service) -> None:
    register(kimi, service.hook_url)
    known = set(sessions(service))
    with Tui(kimi) as tui:
        tui.ready()
        tui.type("MOCK:bash_ok please")
        tui.wait("Run this command?")
        tui.press("3")
        tui.wait("The command printed mock-ok.")
        tui.type("MOCK:hold please")
        tui.wait("Held until let go.")
        tui.press("Escape")
        tui.wait("nterrupted")
        tui.type("/exit")
        tui.wait_end()
    (session,) = set(sessions(service)) - known
    wanted = ["session.started", "session.ended"] + ["run.started"] * 2 + ["run.finished", "run.cancelled"]
    wanted += ["tool.requested", "tool.denied"]
    wanted += ["attention.requested", "attention.answered", "attention.resolved"]
    events = service.wait(session, settled(kimi, *wanted, ends=False))
    sound(events)
    assert Counter(core(events)) == Counter(wanted)
    assert core(events)[-1] == "session.ended"
    denied = next(e for e in events if e["type"] == "tool.denied")
    assert denied["data"]["by"] == "runtime"
