"""Orders: fetched once, acknowledged once, and never credited with what is not known to be theirs."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.aep.capture import Posture
from handlers.aep.ulid import Mint
from handlers.lifecycle.bounds import ORDERS
from handlers.lifecycle.commands import Cancel, Command, Decide
from handlers.lifecycle.orders import ANSWER_MS, FETCH_MS, OUTCOME_MS, Claim, Done, Fetch
from handlers.lifecycle.reducer import Emitted, Happening, Input, reduce
from handlers.mapping.web import map_frame
from handlers.mapping.web_asks import offered
from tests.web.frames import Journal
from tests.web.stage import SESSION, Stage


class Scene(Stage):
    """A session with a run and two approvals that can be answered, live at the link `l`."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.feed(SESSION, Claim("l"))
        self.frame(self.journal.add("turn.started", turnId=0))
        self.requests: list[str] = []
        for approval in ("approval_1", "approval_2"):
            moment = map_frame(self.journal.approval(0, approval), "primary", Posture())
            assert moment is not None
            (asked,) = self.feed(SESSION, offered(moment))
            self.requests.append(asked.id)

    def reply(self, happening: Happening) -> dict[str, Any]:
        """What whoever brings this is told, without doing it."""
        given = Input(happening, self.at + 10, Mint(self.at, bytes(10)))
        return dict(reduce(self.state(), [given], self.at).replies[0])

    def decide(self, name: str = "n1", option: str = "approved", which: int = 0) -> list[Emitted]:
        act = Decide(self.requests[which], option)
        return self.feed(SESSION, Command(f"id-{name}", name, act, by="somebody"))

    def cancel(self, name: str = "n1") -> list[Emitted]:
        return self.feed(SESSION, Command(f"id-{name}", name, Cancel()))

    def fetch(self, link: str = "l") -> list[Any]:
        orders = self.reply(Fetch(link)).get("orders", [])
        self.feed(SESSION, Fetch(link))
        assert isinstance(orders, list)
        return orders

    def done(self, outcome: str, name: str = "n1") -> list[Emitted]:
        return self.feed(SESSION, Done(name, outcome))

    def resolved(self, decision: str | None, approval: str = "approval_1") -> list[Emitted]:
        return self.frame(self.journal.resolved(approval, decision))


def told(events: list[Emitted]) -> list[tuple[str, Any]]:
    return [(event.draft.type, event.draft.data.get("code")) for event in events]


def test_taking_a_command_says_nothing_yet() -> None:
    scene = Scene()
    assert scene.decide() == []
    assert scene.fetch() == ["n1"]
    assert scene.fetch() == []
    (ack,) = scene.done("done")
    assert (ack.draft.type, ack.cause, ack.draft.data) == ("control.accepted", "id-n1", {})
    assert scene.done("done") == []


def test_only_the_link_that_has_the_session_fetches() -> None:
    scene = Scene()
    scene.decide()
    assert scene.fetch("another") == []
    scene.feed(SESSION, Claim("another"))
    assert scene.fetch("l") == []
    assert scene.fetch("another") == ["n1"]


def test_the_outcome_is_the_vendors_and_is_linked_to_the_command() -> None:
    scene = Scene()
    scene.decide()
    scene.fetch()
    scene.done("done")
    answered, resolved = scene.resolved("approved")
    assert {answered.cause, resolved.cause} == {"id-n1"}
    assert answered.draft.data == {"answer": {"option": "approved"}, "via": "control", "by": "somebody"}


@pytest.mark.parametrize("outcome", ["unknown", "gone", "refused", "away", "unauthorized", "nonsense"])
def test_what_is_not_known_to_be_ours_is_not_credited(outcome: str) -> None:
    scene = Scene()
    scene.decide()
    scene.fetch()
    (ack,) = scene.done(outcome)
    answered, _ = scene.resolved("approved")
    assert (answered.cause, answered.draft.data["via"]) == (scene.requests[0], "oob")
    accepted = outcome in ("unknown", "nonsense")
    assert ack.draft.type == ("control.accepted" if accepted else "control.rejected")


def test_a_decision_that_is_another_is_another_humans() -> None:
    scene = Scene()
    scene.decide()
    scene.fetch()
    scene.done("done")
    answered, _ = scene.resolved("rejected")
    assert answered.cause == scene.requests[0]


def test_one_that_no_link_takes_is_refused_in_time() -> None:
    scene = Scene()
    scene.decide()
    at = scene.at
    scene.wait(at + FETCH_MS)
    assert told([event for _, event in scene.told][-1:]) == [("control.rejected", "no-link")]
    assert scene.fetch() == []
    assert FETCH_MS < ANSWER_MS < 10_000


def test_one_whose_link_fell_silent_is_acknowledged_as_attempted() -> None:
    scene = Scene()
    scene.decide()
    at = scene.at
    scene.fetch()
    scene.wait(at + ANSWER_MS)
    assert told([event for _, event in scene.told][-1:]) == [("control.accepted", None)]
    assert scene.done("done") == []
    answered, _ = scene.resolved("approved")
    assert answered.cause == scene.requests[0]


def test_the_first_answer_wins() -> None:
    scene = Scene()
    scene.decide("n1")
    assert told(scene.decide("n2", "rejected")) == [("control.rejected", "already-decided")]
    assert scene.decide("n3", which=1) == []
    assert scene.fetch() == ["n1", "n3"]
    scene.resolved("approved", "approval_2")
    assert told(scene.decide("n4", which=1)) == [("control.rejected", "closed")]


def test_a_command_that_comes_again_is_one() -> None:
    scene = Scene()
    scene.decide()
    assert scene.decide() == []
    scene.fetch()
    scene.done("gone")
    assert scene.decide() == []
    assert scene.fetch() == []


def test_the_end_of_the_run_is_linked_to_its_cancel() -> None:
    scene = Scene()
    scene.cancel()
    assert told(scene.cancel("n2")) == [("control.rejected", "already-decided")]
    scene.fetch()
    scene.done("done")
    ended = scene.frame(scene.journal.add("turn.ended", turnId=0, reason="cancelled", durationMs=4))
    assert [(event.draft.type, event.cause) for event in ended] == [("run.cancelled", "id-n1")]
    assert told(scene.cancel("n3")) == [("control.rejected", "no-run")]


def test_a_run_that_finished_first_was_not_cancelled() -> None:
    scene = Scene()
    scene.cancel()
    scene.fetch()
    scene.done("done")
    ended = scene.frame(scene.journal.add("turn.ended", turnId=0, reason="completed", durationMs=4))
    assert [event.draft.type for event in ended] == ["run.finished"]
    assert ended[0].cause != "id-n1"


def test_an_outcome_that_never_comes_is_forgotten() -> None:
    scene = Scene()
    scene.decide()
    scene.fetch()
    scene.done("done")
    scene.wait(scene.at + OUTCOME_MS)
    assert scene.state().web.orders == {}


def test_orders_are_few() -> None:
    scene = Scene()
    for number in range(ORDERS + 3):
        moment = map_frame(scene.journal.approval(0, f"more_{number}"), "primary", Posture())
        assert moment is not None
        (asked,) = scene.feed(SESSION, offered(moment))
        scene.requests.append(asked.id)
    acks = [told(scene.decide(f"n{n}", which=n)) for n in range(ORDERS + 2)]
    assert acks == [[]] * ORDERS + [[("control.rejected", "busy")]] * 2


def test_without_a_link_nothing_is_taken() -> None:
    stage = Stage()
    journal = Journal()
    stage.frame(journal.add("turn.started", turnId=0))
    events = stage.feed(SESSION, Command("id-n1", "n1", Cancel()))
    assert told(events) == [("control.rejected", "no-link")]


def test_a_request_that_is_answered_elsewhere_cannot_be_answered_here() -> None:
    stage = Stage()
    stage.feed(SESSION, Claim("l"))
    (asked,) = stage.frame(Journal().approval(0, "approval_1"))
    for subject, code in ((asked.id, "oob"), ("nothing", "unknown-request")):
        events = stage.feed(SESSION, Command(f"id-{code}", code, Decide(subject, "approved")))
        assert told(events) == [("control.rejected", code)]


@pytest.mark.parametrize("approval", ["x" * 65, "with blank", "ü", "a/b"])
def test_an_id_that_could_not_be_named_again_is_not_offered(approval: str) -> None:
    moment = map_frame(Journal().approval(0, approval), "primary", Posture())
    assert moment is not None
    assert offered(moment) is moment
