"""Answering approvals and cancelling runs at `kimi web`: two writes, and outcomes only by its own word."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.projection import StateProjection
from starlette.responses import JSONResponse, Response

from handlers.errors import SettingsError
from handlers.lifecycle import orders
from handlers.service import Service
from handlers.settings import Settings
from tests.app.duplex import Duplex, Frame, command, duplex
from tests.app.replica import Replica, fresh_prefix, running, until
from tests.servers import AnyServer
from tests.web.fake import SECRET, Fake, faking
from tests.web.frames import JSON, Journal
from tests.web.linked import claimed, linking_to, quicken, told
from tests.web.stage import SESSION

TOKEN = "a-token-of-the-service"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Scene:
    """A server, a link to one replica, and a consumer of another."""

    fake: Fake
    journal: Journal
    replica: Replica
    consumer: Duplex

    async def asked(self, approval: str = "approval_1", turn: int = 0) -> Frame:
        """The server asks; the `attention.requested` that tells it."""
        await self.fake.send(self.journal, self.journal.approval(turn, approval))
        return await self.consumer.until(
            lambda f: f["type"] == "attention.requested" and f["subject"] == approval
        )

    async def respond(self, request: Frame, **answer: str) -> Frame:
        """Answer it; the acknowledgement."""
        sent = command(SESSION, subject=request["id"], data={"answer": answer})
        return await self.ack(sent)

    async def ack(self, sent: Frame) -> Frame:
        await self.consumer.send(sent)
        return await self.consumer.until(
            lambda f: (
                f["type"] in ("control.accepted", "control.rejected", "error")
                and f.get("cause") == sent["id"]
            )
        )

    async def decided(self, session: str, approval: str, body: JSON) -> Response:
        """As the vendor does: the broadcast may overtake the answer."""
        more = {"feedback": body["feedback"]} if "feedback" in body else {}
        frame = self.journal.resolved(approval, body["decision"], **more)
        await self.fake.send(self.journal, frame)
        await asyncio.sleep(0.05)
        return JSONResponse({"code": 0, "msg": "success", "data": {"resolved": True}})

    async def outcome(self, cause: str, kind: str) -> Frame:
        return await self.consumer.until(lambda f: f["type"] == kind and f.get("cause") == cause)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


@pytest.fixture
async def scene(redis_server: AnyServer, tmp_path: Path) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        prefix = fresh_prefix()
        one, other = [
            await stack.enter_async_context(
                running(
                    redis_server,
                    redis_prefix=prefix,
                    token=TOKEN,
                    headers=HEADERS,
                    web_control=True,
                    web_mode="primary",
                )
            )
            for _ in range(2)
        ]
        fake = await stack.enter_async_context(faking(tmp_path))
        await stack.enter_async_context(linking_to(one, tmp_path, token=TOKEN))
        journal = fake.session(SESSION)
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        await told(one, "run.started")
        consumer = await stack.enter_async_context(duplex(other.url, TOKEN))
        await consumer.hello()
        await consumer.subscribe(filter={"session": SESSION})
        found = Scene(fake, journal, other, consumer)
        fake.on_decide = found.decided
        await claimed(one, SESSION)
        yield found
        events = (await other.replay()).events
        projection = StateProjection()
        for event in events:
            projection.apply(event)
        assert projection.state()["violations"] == []
        assert SECRET not in json.dumps(events)


async def test_an_approval_is_offered_and_answered(scene: Scene) -> None:
    request = await scene.asked()
    assert request["data"]["options"] == [
        {"id": "approved", "label": "Approve"},
        {"id": "rejected", "label": "Reject"},
    ]
    assert request["data"]["respond_via"] == ["control", "oob"]
    ack = await scene.respond(request, option="approved")
    assert ack["type"] == "control.accepted"
    answered = await scene.outcome(ack["cause"], "attention.answered")
    resolved = await scene.outcome(ack["cause"], "attention.resolved")
    assert answered["data"] == {"answer": {"option": "approved"}, "via": "control", "by": "sender"}
    assert {answered["subject"], resolved["subject"]} == {request["id"]}
    assert ack["seq"] < answered["seq"] < resolved["seq"]
    assert scene.fake.bodies == [{"decision": "approved"}]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ({"option": "rejected"}, {"decision": "rejected"}),
        (
            {"option": "rejected", "text": "use the other one"},
            {"decision": "rejected", "feedback": "use the other one"},
        ),
        ({"text": "not like this"}, {"decision": "rejected", "feedback": "not like this"}),
        ({"text": " Approve "}, {"decision": "approved"}),
        ({"text": "REJECTED"}, {"decision": "rejected"}),
        ({"option": "approved", "text": "go on"}, {"decision": "approved"}),
    ],
)
async def test_what_an_answer_means(scene: Scene, answer: dict[str, str], body: JSON) -> None:
    """Text that names no option rejects, with the text as the reason."""
    ack = await scene.respond(await scene.asked(), **answer)
    assert ack["type"] == "control.accepted"
    answered = await scene.outcome(ack["cause"], "attention.answered")
    assert scene.fake.bodies == [body]
    assert answered["data"]["answer"]["option"] == body["decision"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"option": "allow"}, "unknown-option"),
        ({}, "empty"),
        ({"option": 7}, "bad-answer"),
        ({"values": {"a": "b"}}, "no-form"),
        ({"text": "x" * 5_000}, "too-long"),
    ],
)
async def test_answers_that_are_none(scene: Scene, answer: Any, code: str) -> None:
    ack = await scene.respond(await scene.asked(), **answer)
    assert (ack["type"], ack["data"]["reason"], ack["data"]["code"]) == ("control.rejected", "invalid", code)
    assert scene.fake.bodies == []


@pytest.mark.parametrize("code", [40902, 40404])
async def test_what_was_decided_elsewhere_is_never_ours(scene: Scene, code: int) -> None:
    """The web UI was first; our command is refused, and its answer is told as what it is."""
    request = await scene.asked()

    async def decide(session: str, approval: str, body: JSON) -> Response:
        frame = scene.journal.resolved(approval, "approved")
        await scene.fake.send(scene.journal, frame)
        await asyncio.sleep(0.05)
        return JSONResponse({"code": code, "msg": SECRET, "data": {"resolved": False}, "stack": SECRET})

    scene.fake.on_decide = decide
    ack = await scene.respond(request, option="approved")
    assert (ack["data"]["reason"], ack["data"]["code"]) == ("refused", "already-resolved")
    answered = await scene.outcome(request["id"], "attention.answered")
    assert answered["data"] == {"answer": {"option": "approved"}, "via": "oob"}
    late = await scene.respond(request, option="approved")
    assert (late["data"]["reason"], late["data"]["code"]) == ("refused", "closed")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (JSONResponse({"code": 40001, "msg": SECRET, "stack": SECRET}), "vendor-refused"),
        (JSONResponse({"code": 0, "data": {"resolved": False}}), "already-resolved"),
        (JSONResponse({"code": 40101, "msg": "Unauthorized"}, 401), "vendor-unauthorized"),
        (Response(SECRET, 500), "vendor-refused"),
    ],
)
async def test_a_server_that_says_no(scene: Scene, answer: Response, code: str) -> None:
    async def decide(session: str, approval: str, body: JSON) -> Response:
        return answer

    scene.fake.on_decide = decide
    ack = await scene.respond(await scene.asked(), option="approved")
    assert (ack["type"], ack["data"]["code"]) == ("control.rejected", code)
    assert "attention.answered" not in [frame["type"] for frame in scene.consumer.have()]


async def test_a_session_that_is_not_loaded_any_more_is_not_woken_to_be_answered(scene: Scene) -> None:
    request = await scene.asked()
    scene.fake.live.clear()
    await scene.fake.hang_up()
    await until(lambda: scene.fake.opened >= 2)
    ack = await scene.respond(request, option="approved")
    assert (ack["type"], ack["data"]["code"]) == ("control.rejected", "unreachable")
    assert not [call for call in scene.fake.calls if "/approvals/" in call]


async def test_two_answers_at_once_are_one(scene: Scene) -> None:
    request = await scene.asked()
    sent = [command(SESSION, subject=request["id"], data={"answer": {"option": "approved"}}) for _ in "ab"]
    for one in sent:
        await scene.consumer.send(one)
    acks = [
        await scene.consumer.until(
            lambda f, one=one: f["type"].startswith("control.") and f.get("cause") == one["id"]
        )
        for one in sent
    ]
    await scene.consumer.until(lambda f: f["type"] == "attention.resolved")
    assert [ack["type"] for ack in acks] == ["control.accepted", "control.rejected"]
    assert len(scene.fake.bodies) == 1


async def test_a_command_sent_again_is_acknowledged_again_and_done_once(scene: Scene) -> None:
    request = await scene.asked()
    sent = command(SESSION, subject=request["id"], data={"answer": {"option": "rejected"}})
    await scene.consumer.send(sent)
    first = await scene.ack(sent)
    await scene.outcome(sent["id"], "attention.resolved")
    scene.consumer.frames.clear()
    again = await scene.ack(sent)
    assert again == first
    assert len(scene.fake.bodies) == 1


async def test_the_run_is_cancelled(scene: Scene) -> None:
    async def abort(session: str) -> None:
        frame = scene.journal.add("turn.ended", turnId=0, reason="cancelled", durationMs=9)
        await scene.fake.send(scene.journal, frame)
        await asyncio.sleep(0.05)

    scene.fake.on_abort = abort
    ack = await scene.ack(command(SESSION, "control.cancel", data={"scope": "run"}))
    assert ack["type"] == "control.accepted"
    cancelled = await scene.outcome(ack["cause"], "run.cancelled")
    assert cancelled["data"] == {"duration_ms": 9}
    again = await scene.ack(command(SESSION, "control.cancel", data={"scope": "run"}))
    assert (again["data"]["reason"], again["data"]["code"]) == ("refused", "no-run")


@pytest.mark.parametrize(
    ("data", "reason"), [({"scope": "session"}, "refused"), ({"scope": "all"}, "invalid"), ({}, "invalid")]
)
async def test_only_a_run_can_be_cancelled(scene: Scene, data: JSON, reason: str) -> None:
    ack = await scene.ack(command(SESSION, "control.cancel", data=data))
    assert (ack["type"], ack["data"]["reason"]) == ("control.rejected", reason)
    assert not [call for call in scene.fake.calls if ":abort" in call]


async def test_a_session_that_hooks_tell_cannot_be_cancelled(scene: Scene) -> None:
    await scene.replica.hook("UserPromptSubmit", "hooked", prompt="x", is_steer=False)
    await scene.consumer.subscribe("t", filter={"session": "hooked"})
    ack = await scene.ack(command("hooked", "control.cancel", data={"scope": "run"}))
    assert (ack["type"], ack["data"]["reason"]) == ("control.rejected", "unsupported")


async def test_the_roster_says_what_is_taken(scene: Scene) -> None:
    await scene.consumer.send({"type": "roster", "id": "r"})
    frame = await scene.consumer.answer("roster", "r")
    (entry,) = [one for one in frame["entries"] if one["session"] == SESSION]
    assert entry["control"]["accepts"] == ["control.attention.respond", "control.cancel"]


async def test_no_link_is_a_refusal_in_time(
    redis_server: AnyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is gone: nothing takes the order, and the sender is told so within the window."""
    monkeypatch.setattr(orders, "FETCH_MS", 600)
    settings = {"token": TOKEN, "headers": HEADERS, "web_control": True, "web_mode": "primary"}
    async with running(redis_server, **settings) as replica, faking(tmp_path) as fake:
        journal = fake.session(SESSION)
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        journal.approval(0, "approval_1")
        async with linking_to(replica, tmp_path, token=TOKEN):
            await told(replica, "attention.requested")
            await claimed(replica, SESSION)
        async with duplex(replica.url, TOKEN) as consumer:
            await consumer.hello()
            await consumer.subscribe(filter={"session": SESSION})
            sent = command(SESSION, "control.cancel", data={"scope": "run"})
            await consumer.send(sent)
            ack = await consumer.until(lambda f: f.get("cause") == sent["id"])
        assert (ack["type"], ack["data"]["reason"]) == ("control.rejected", "refused")
        assert ack["data"]["code"] == "no-link"
    assert not [call for call in fake.calls if ":abort" in call]


async def test_without_the_setting_nothing_is_offered_or_taken(
    redis_server: AnyServer, tmp_path: Path
) -> None:
    async with (
        running(redis_server, token=TOKEN, headers=HEADERS, web_mode="primary") as replica,
        faking(tmp_path) as fake,
        linking_to(replica, tmp_path, token=TOKEN),
        duplex(replica.url, TOKEN) as consumer,
    ):
        journal = fake.session(SESSION)
        journal.add("turn.started", turnId=0, origin={"kind": "user"})
        journal.approval(0, "approval_1")
        events = await told(replica, "attention.requested")
        assert not {"options", "respond_via"} & events[-1]["data"].keys()
        await consumer.hello()
        sent = command(SESSION, subject=events[-1]["id"], data={"answer": {"option": "approved"}})
        await consumer.send(sent)
        refused = await consumer.until(lambda f: f.get("cause") == sent["id"])
        assert (refused["type"], refused["code"]) == ("error", "unsupported")


async def test_control_needs_primary_mode_and_a_token() -> None:
    given = {"redis_url": "redis://127.0.0.1:1", "web_control": True}
    with pytest.raises(SettingsError, match="AEP_KIMI_WEB_CONTROL"):
        Service(Settings(**given, web_mode="primary"))
    companion = Settings(**given)
    assert companion.controls is None
    assert companion.idle is not None
    assert Settings(**given, web_mode="primary").idle is None
    assert Settings(redis_url="redis://127.0.0.1:1").idle is None
