"""The real `kimi web` behind our link: what happens there is told once, and can be answered from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from aep_sdk.control import NackError

from tests.model_server import ModelServer

from .control import TOKEN, asked_of, client, respond
from .kimi import Kimi
from .link import Link
from .service import Event, Service, core, register, types, violations
from .waiting import until
from .web import Web

PRIMARY = {"AEP_TOKEN": TOKEN, "AEP_KIMI_WEB_CONTROL": "1", "AEP_KIMI_WEB_MODE": "primary"}
CALL = ["tool.requested", "tool.completed"]
TURN = ["run.started", "run.finished"]
ANSWERED = ["attention.requested", "attention.answered", "attention.resolved"]


@pytest.fixture(scope="module")
def primary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service for which the web channel carries the whole story."""
    with Service(tmp_path_factory.mktemp("primary"), PRIMARY) as running:
        yield running


def told(service: Service, session: str, *wanted: str) -> list[Event]:
    """The events of a session once they are these, of the types that AEP defines and no other."""
    goal = Counter(wanted)
    events = service.wait(session, lambda found: not goal - Counter(core(found)))
    assert Counter(core(events)) == goal
    assert violations(events) == []
    assert len({event["id"] for event in events}) == len(events)
    runs = [event["run"] for event in events if event["type"] == "run.started"]
    assert len(set(runs)) == len(runs)
    return events


def test_a_session_and_answers_from_here(kimi: Kimi, primary: Service, model: ModelServer) -> None:
    with Web(kimi) as web, Link(kimi, primary) as link:
        link.watching()
        session = web.create()
        web.prompt(session, "MOCK:plain")
        web.idle(session)
        wanted = [*TURN]
        told(primary, session, *wanted)

        web.prompt(session, "MOCK:bash_ok")
        request = asked_of(primary, session)
        assert "control" in request["data"]["respond_via"]
        assert respond(primary, request, {"option": "approved"})["type"] == "control.accepted"
        web.idle(session)
        assert "mock-ok" in model.of("bash_ok")[1].texts("tool")[0]
        wanted += [*TURN, *CALL, *ANSWERED, "control.accepted"]
        told(primary, session, *wanted)

        web.prompt(session, "MOCK:bash_fail")
        respond(primary, asked_of(primary, session), {"text": "please use another command"})
        web.idle(session)
        assert "please use another command" in model.of("bash_fail")[1].texts("tool")[-1]
        primary.wait(session, lambda found: types(found).count("run.finished") == 3)

        web.prompt(session, "MOCK:write")
        late = asked_of(primary, session)
        assert web.approve(session, web.pending(session)[0]["approval_id"]).code == 0
        with pytest.raises(NackError) as nack:
            respond(primary, late, {"option": "rejected"})
        assert not nack.value.synthesized
        web.idle(session)
        primary.wait(session, lambda found: types(found).count("run.finished") == 4)

        web.prompt(session, "MOCK:hold")
        primary.wait(session, lambda found: types(found).count("run.started") == 5)
        with client(primary) as control:
            ack = control.send("control.cancel", session, data={"scope": "run"})
            assert ack["type"] == "control.accepted"
            with pytest.raises(NackError):
                control.send("control.cancel", session, data={"scope": "session"})
        web.idle(session)
        events = primary.wait(session, lambda found: "run.cancelled" in types(found))
        assert web.stop() == 0
    assert violations(events) == []
    answers = [e["data"]["answer"]["option"] for e in events if e["type"] == "attention.answered"]
    assert answers == ["approved", "rejected", "approved"]


def test_a_question_and_a_subagent(kimi: Kimi, primary: Service) -> None:
    with Web(kimi) as web, Link(kimi, primary) as link:
        link.watching()
        session = web.create()
        web.prompt(session, "MOCK:ask")
        question = web.pending(session, "questions")[0]
        request = asked_of(primary, session)
        assert request["data"]["kind"] == "form"
        web.choose(session, question["question_id"], {"q_0": {"kind": "single", "option_id": "opt_0_1"}})
        web.idle(session)
        wanted = [*TURN, *CALL, *ANSWERED]
        told(primary, session, *wanted)
        web.prompt(session, "MOCK:subagent", permission_mode="yolo")
        web.idle(session)
        wanted += [*TURN, *CALL, "delegation.subagent.started", "delegation.subagent.stopped"]
        told(primary, session, *wanted)


def test_a_link_that_is_killed_tells_the_rest_later(kimi: Kimi, primary: Service) -> None:
    with Web(kimi) as web, Link(kimi, primary) as link:
        link.watching()
        session = web.create()
        web.prompt(session, "MOCK:bash_ok")
        asked_of(primary, session)
        link.kill()
        assert web.approve(session, web.pending(session)[0]["approval_id"]).code == 0
        web.idle(session)
        link.start()
        told(primary, session, *TURN, *CALL, *ANSWERED)


def test_a_server_that_is_killed_in_a_turn(kimi: Kimi, primary: Service, model: ModelServer) -> None:
    """The vendor forgets the turn; the next ones are told, and nothing of the first is told twice.

    0.28.0 does not tell the start of the first turn of a session that it has loaded again."""
    with Web(kimi) as web, Link(kimi, primary) as link:
        link.watching()
        session = web.create()
        web.prompt(session, "MOCK:hold")
        primary.wait(session, lambda found: "run.started" in types(found))
        until(lambda: model.of("hold"), "the held turn")
        until(lambda: web.journalled(session, "turn.step.started"), "the journal")
        web.kill()
        model.release()
        web.start()
        link.watching(2)
        with web.open(session):
            for scenario in ("plain", "think"):
                web.prompt(session, f"MOCK:{scenario}")
                web.idle(session)
        told_of = 2 if kimi.v2 else 1
        events = primary.wait(session, lambda found: types(found).count("run.finished") == told_of)
    assert violations(events) == []
    first, *later = [event["run"] for event in events if event["type"] == "run.started"]
    assert len(later) == told_of
    assert [event["run"] for event in events if event["type"] == "run.finished"] == later
    assert {event["run"] for event in events if event["type"] == "run.cancelled"} <= {first}


def test_beside_hooks_nothing_is_told_twice(kimi: Kimi, service: Service) -> None:
    """Companion mode: hooks are the authority, the web channel adds what they cannot see."""
    register(kimi, service.hook_url)
    with Web(kimi) as web, Link(kimi, service) as link:
        link.watching()
        session = web.create()
        web.prompt(session, "MOCK:bash_ok")
        approval = web.pending(session)[0]["approval_id"]
        service.wait(session, lambda found: "attention.requested" in types(found))
        assert web.approve(session, approval).code == 0
        web.idle(session)
        service.wait(session, lambda found: "x.kimi-code.web.prompt.completed" in types(found))
        told(service, session, "session.started", *TURN, *CALL, *ANSWERED)
