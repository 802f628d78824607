"""Answers from elsewhere decide over the real agent's tool calls; instructions reach its model.

The one who answers is the official SDK's control client on `/socket`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from aep_sdk.control import NackError

from tests.model_server import ModelServer

from .control import TOKEN, asked_of, client, respond
from .kimi import Kimi, Printed
from .service import Event, Service, register, types, violations
from .tui import Tui
from .waiting import until

INSTRUCT = "x.kimi-code.control.instruct"
CONTROL = {"AEP_TOKEN": TOKEN, "AEP_KIMI_CONTROL": "1", "AEP_INSTRUCT": "1"}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that holds every tool call for half a minute."""
    with Service(tmp_path_factory.mktemp("held"), {**CONTROL, "AEP_ATTENTION_TIMEOUT_MS": "30000"}) as it:
        yield it


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that holds a tool call for a moment only."""
    with Service(tmp_path_factory.mktemp("hasty"), {**CONTROL, "AEP_ATTENTION_TIMEOUT_MS": "1500"}) as it:
        yield it


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def controlled(kimi: Kimi, service: Service) -> None:
    """Register the shim with control, its token in a file."""
    token = kimi.base / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    register(kimi, service.hook_url, token_file=str(token), control=True)


def asked(service: Service, known: set[str], timeout_s: float = 30) -> Event:
    """The next request that nobody has answered yet, of a session that is not among the `known`."""

    def look() -> Event | None:
        events = [e for e in service.events() if e["session"] not in known]
        done = {e.get("subject") for e in events if e["type"] in ("attention.resolved", "attention.timeout")}
        open_ = [e for e in events if e["type"] == "attention.requested" and e["id"] not in done]
        return open_[0] if open_ else None

    return until(look, "a held tool call", timeout_s, 0.1)


def sessions(service: Service) -> set[str]:
    return {event["session"] for event in service.events()}


def closed(service: Service, request: Event, *wanted: str) -> list[Event]:
    """The session's events once they have what is wanted, and nothing to be said against them."""
    events = service.wait(request["session"], lambda found: not set(wanted) - set(types(found)))
    assert violations(events) == []
    ends = [e["type"] for e in events if e["type"] in ("attention.resolved", "attention.timeout")]
    requests = [e for e in events if e["type"] == "attention.requested"]
    assert len(ends) == len(requests)
    return events


def started(
    background: ThreadPoolExecutor, kimi: Kimi, service: Service, prompt: str
) -> tuple[Future[Printed], Event]:
    """A print run in the background, and the request of its first tool call."""
    known = sessions(service)
    run = background.submit(kimi.run_print, prompt, timeout_s=90)
    request = asked(service, known)
    assert request["data"]["respond_via"] == ["control"]
    assert [option["id"] for option in request["data"]["options"]] == ["allow", "deny"]
    return run, request


def test_allow_lets_the_tool_run(
    kimi: Kimi, held: Service, model: ModelServer, background: ThreadPoolExecutor
) -> None:
    controlled(kimi, held)
    run, request = started(background, kimi, held, "MOCK:bash_ok")
    assert not run.done()
    assert respond(held, request, {"option": "allow"})["type"] == "control.accepted"
    printed = run.result()
    assert printed.code == 0
    assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
    events = closed(held, request, "attention.resolved", "tool.completed", "run.finished")
    answered = next(e for e in events if e["type"] == "attention.answered")
    assert answered["subject"] == request["id"]
    assert answered["data"]["answer"]["option"] == "allow"
    assert "tool.denied" not in types(events)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"option": "deny"}, ""),
        ({"text": "no, use the staging registry"}, "no, use the staging registry"),
    ],
    ids=["option", "text"],
)
def test_deny_stops_it_and_the_model_sees_why(
    kimi: Kimi,
    held: Service,
    model: ModelServer,
    background: ThreadPoolExecutor,
    tmp_path: Path,
    answer: dict[str, str],
    reason: str,
) -> None:
    controlled(kimi, held)
    trace = tmp_path / "it-ran"
    run, request = started(background, kimi, held, f"MOCK:bash_ok=touch {trace}")
    respond(held, request, answer)
    assert run.result().code == 0
    assert not trace.exists()
    told = model.of("bash_ok")[1].texts("tool")[0]
    assert reason in told
    assert "ERROR" in told or "denied" in told.lower()
    events = closed(held, request, "attention.resolved", "tool.denied", "run.finished")
    denied = [e for e in events if e["type"] == "tool.denied"]
    assert [e["data"]["by"] for e in denied] == ["policy"]
    assert not {"tool.completed", "tool.failed"} & set(types(events))


def test_a_second_answer_is_told_that_it_came_late(
    kimi: Kimi, held: Service, background: ThreadPoolExecutor
) -> None:
    controlled(kimi, held)
    run, request = started(background, kimi, held, "MOCK:bash_ok")
    respond(held, request, {"option": "allow"})
    with pytest.raises(NackError) as nack:
        respond(held, request, {"option": "deny"})
    assert not nack.value.synthesized
    assert run.result().code == 0
    events = closed(held, request, "attention.resolved", "tool.completed")
    assert types(events).count("attention.answered") == 1


def test_the_command_line_answers(
    kimi: Kimi, held: Service, model: ModelServer, background: ThreadPoolExecutor
) -> None:
    controlled(kimi, held)
    run, request = started(background, kimi, held, "MOCK:bash_ok")
    listed = held.cli("pending")
    assert listed.returncode == 0, listed.stderr
    assert "Bash" in listed.stdout
    said = held.cli("respond", request["id"], "no, use the staging registry")
    assert said.returncode == 0, said.stderr
    assert run.result().code == 0
    assert "no, use the staging registry" in model.of("bash_ok")[1].texts("tool")[0]
    assert held.cli("respond", request["id"], "allow").returncode == 3
    closed(held, request, "attention.resolved", "tool.denied")


def test_after_the_timeout_the_agent_goes_its_own_way(
    kimi: Kimi, hasty: Service, model: ModelServer, background: ThreadPoolExecutor
) -> None:
    controlled(kimi, hasty)
    run, request = started(background, kimi, hasty, "MOCK:bash_ok")
    assert run.result().code == 0
    assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
    events = closed(hasty, request, "attention.timeout", "tool.completed", "run.finished")
    assert "attention.answered" not in types(events)


def test_in_the_terminal_allow_still_asks_there_and_deny_does_not(
    kimi: Kimi, held: Service, model: ModelServer
) -> None:
    """Allow is no objection and nothing more: the vendor's own approval follows. Deny needs none."""
    controlled(kimi, held)
    known = sessions(held)
    with Tui(kimi) as tui:
        tui.ready()
        tui.type("MOCK:bash_ok please")
        request = asked(held, known)
        assert "Run this command?" not in tui.screen()
        respond(held, request, {"option": "allow"})
        tui.wait("Run this command?")
        tui.press("1")
        tui.wait("The command printed mock-ok.")
        tui.type("MOCK:bash_fail please")
        held.wait(request["session"], lambda found: types(found).count("tool.requested") == 2)
        respond(held, asked_of(held, request["session"]), {"text": "not on a Friday"})
        tui.wait("The command failed.")
        assert "not on a Friday" in model.of("bash_fail")[1].texts("tool")[-1]
        tui.type("/exit")
        tui.wait_end()
    events = closed(held, request, "session.ended", "tool.denied")
    assert types(events).count("attention.requested") == 3


def test_a_service_that_is_killed_frees_the_agent(
    kimi_newest: Kimi, model: ModelServer, background: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Fail-open, and the request gets its one end once the service is back."""
    with Service(tmp_path / "service", {**CONTROL, "AEP_ATTENTION_TIMEOUT_MS": "30000"}) as service:
        controlled(kimi_newest, service)
        run, request = started(background, kimi_newest, service, "MOCK:bash_ok")
        service.kill()
        assert run.result().code == 0
        assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
        service.start()
        until(lambda: ended(service, request), "the end of the request", 45)
        with pytest.raises(NackError):
            respond(service, request, {"option": "allow"})
        events = closed(service, request)
    assert "attention.answered" not in types(events)


def ended(service: Service, request: Event) -> bool:
    return bool({"attention.resolved", "attention.timeout"} & set(types(service.events(request["session"]))))


WORDS = "Mind the gap between the tests."


def instruct(service: Service, session: str) -> None:
    with client(service) as control:
        ack = control.send(INSTRUCT, session, data={"text": WORDS}, capture="redacted")
    assert ack["type"] == "control.accepted"


def delivered(service: Service, session: str, model: ModelServer, *scenarios: str) -> None:
    """Every later request has the words once, for they stay in the conversation; the stream says so once."""
    for scenario in scenarios:
        for request in model.of(scenario):
            assert "\n".join(request.texts("user")).count(WORDS) == 1
    kind = "x.kimi-code.instruction.delivered"
    events = service.wait(session, lambda found: kind in types(found))
    (told,) = [e for e in events if e["type"] == kind]
    assert told["data"]["queued_ms"] >= 0


def test_an_instruction_reaches_the_model_of_a_terminal_once(
    kimi: Kimi, hasty: Service, model: ModelServer
) -> None:
    controlled(kimi, hasty)
    known = sessions(hasty)
    with Tui(kimi) as tui:
        tui.ready()
        tui.type("MOCK:plain please")
        tui.wait("Hello from the mock model.")
        (session,) = until(lambda: sessions(hasty) - known, "a session")
        instruct(hasty, session)
        tui.type("MOCK:think please")
        tui.wait("Thought about it.")
        tui.type("MOCK:read_missing please")
        tui.wait("There is no such file.")
        assert tui.screen().count(WORDS) <= 1
        tui.type("/exit")
        tui.wait_end()
    assert WORDS not in str(model.of("plain")[0].body)
    delivered(hasty, session, model, "think", "read_missing")


def test_an_instruction_waits_for_a_resumed_print_session(
    kimi_newest: Kimi, hasty: Service, model: ModelServer
) -> None:
    controlled(kimi_newest, hasty)
    session = kimi_newest.run_print("MOCK:plain").session
    assert session is not None
    instruct(hasty, session)
    second = kimi_newest.run_print("MOCK:bash_ok", resume=session)
    third = kimi_newest.run_print("MOCK:think", resume=session)
    delivered(hasty, session, model, "bash_ok", "think")
    printed = [second.stdout, second.stderr, third.stdout, third.stderr]
    assert "".join(printed).count(WORDS) <= 1


def test_an_ended_session_takes_no_instruction(kimi_oldest: Kimi, hasty: Service) -> None:
    """The engine of 0.28 ends a print session at its exit: there is nobody left to instruct."""
    controlled(kimi_oldest, hasty)
    session = kimi_oldest.run_print("MOCK:plain").session
    assert session is not None
    hasty.wait(session, lambda found: "session.ended" in types(found))
    with client(hasty) as control, pytest.raises(NackError) as nack:
        control.send(INSTRUCT, session, data={"text": WORDS}, capture="redacted")
    assert not nack.value.synthesized
