"""One decision per command, told in the same bytes however often and wherever it is asked for again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from handlers.aep.levels import Capture
from handlers.errors import SettingsError
from handlers.service import Service
from handlers.settings import Settings
from handlers.tokens import token_digest
from tests.app.duplex import command, duplex
from tests.app.replica import until
from tests.control.desk import INSTRUCT, RESPOND, desk, hold, replicas
from tests.servers import AnyServer


async def test_a_retry_on_any_replica_gets_the_recorded_bytes(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(one) as here, desk(other) as there:
        held = hold(one)
        request = await there.request(held.call)
        made = command("s1", RESPOND, subject=request["id"], data={"answer": {"option": "deny"}})
        await here.send(made)
        first = await there.ack(made)
        assert await held.verdict() is not None
        for human in (there, here, there):
            before = _acks(there.connection.texts, made["id"])
            await human.send(made)
            async with asyncio.timeout(20):
                while len(_acks(there.connection.texts, made["id"])) == len(before):
                    await _more(there)
        texts = _acks(there.connection.texts, made["id"])
        assert len(texts) == 4
        assert len({json.dumps(json.loads(text), sort_keys=True) for text in texts}) == 1
        assert json.loads(texts[0])["id"] == first["id"]
        held_events = (await one.replay()).events
        assert [event["type"] for event in held_events].count("control.accepted") == 1
        assert [event["type"] for event in held_events].count("attention.answered") == 1


async def test_deliveries_of_one_command_at_once_are_decided_once(redis_server: AnyServer) -> None:
    async with (
        replicas(redis_server, 3) as (one, two, three),
        desk(one) as a,
        desk(two) as b,
        desk(three) as c,
    ):
        held = hold(one)
        request = await a.request(held.call)
        made = command("s1", RESPOND, subject=request["id"], data={"answer": {"option": "allow"}})
        await asyncio.gather(*(human.send(made) for human in (a, b, c, a, b, c)))
        assert (await b.ack(made))["type"] == "control.accepted"
        assert await held.verdict() is None
        events = (await one.replay()).events
        assert [event["type"] for event in events].count("control.accepted") == 1


async def test_the_same_id_of_another_sender_is_another_command(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1) as (one,), desk(one) as human:
        held = hold(one)
        request = await human.request(held.call)
        made = command("s1", RESPOND, subject=request["id"], data={"answer": {"option": "allow"}})
        await human.send(made)
        await human.ack(made)
        await human.send({**made, "source": "aep://elsewhere/agent/sender"})
        await human.wait(
            lambda frame: frame["type"] == "control.rejected" and frame.get("cause") == made["id"]
        )
        assert await held.verdict() is None


async def test_a_retry_is_answered_after_the_end_of_its_session(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(other) as human:
        await one.hook("SessionStart", source="startup")
        made = command("s1", INSTRUCT, data={"text": "hello"})
        await human.send(made)
        await human.ack(made)
        await one.hook("SessionEnd", reason="exit")
        await human.wait(lambda frame: frame["type"] == "session.ended")
        await human.send(made)
        async with asyncio.timeout(20):
            while len(_acks(human.connection.texts, made["id"])) < 2:
                await _more(human)
        assert len(set(_acks(human.connection.texts, made["id"]))) == 1
        fresh = command("s1", INSTRUCT, data={"text": "hello"})
        assert (await human.ack(await human.send(fresh)))["code"] == "no-route"


async def test_what_hook_sessions_do_not_take_is_unsupported_with_a_reason(redis_server: AnyServer) -> None:
    async with replicas(redis_server, 1, instruct=False) as (one,), desk(one) as human:
        await one.hook("UserPromptSubmit")
        for kind, words in (
            ("control.cancel", "cancel"),
            ("control.pause", "hooks"),
            (INSTRUCT, "AEP_INSTRUCT"),
            ("x.other.control.jump", "hooks"),
        ):
            ack = await human.ack(await human.send(command("s1", kind, data={"scope": "run"})))
            assert (ack["type"], ack["data"]["reason"]) == ("control.rejected", "unsupported")
            assert words in ack["data"]["detail"]
        events = (await one.replay()).events
        assert [event["type"] for event in events].count("control.rejected") == 4


async def test_the_declaration_follows_the_settings(redis_server: AnyServer) -> None:
    for settings, expected in (
        ({"control": True, "instruct": True}, [RESPOND, INSTRUCT]),
        ({"control": True, "instruct": False}, [RESPOND]),
        ({"control": False, "instruct": True}, [INSTRUCT]),
        ({"control": False, "instruct": False}, []),
    ):
        async with replicas(redis_server, 1, **settings) as (one,), duplex(one.url, "correct-horse") as wire:
            hello = await wire.hello("both")
            assert hello["capabilities"]["control"]["accepts"] == expected
            await one.hook("UserPromptSubmit")
            await wire.send({"type": "roster", "id": "r"})
            (entry,) = (await wire.answer("roster", "r"))["entries"]
            assert entry["control"] == {"accepts": expected, "ack_window_ms": 10_000}


async def test_rights_and_who_answered(redis_server: AnyServer, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(
        f"{token_digest('watcher-token')} testhost watch a screen\n"
        f"{token_digest('answer-token')} testhost watch,answer Ann\n"
        f"{token_digest('steer-token')} testhost watch,steer Steve\n"
    )
    async with (
        replicas(redis_server, 1, tokens_file=str(file)) as (one,),
        desk(one.url, "watcher-token") as watcher,
        desk(one.url, "answer-token") as ann,
        desk(one.url, "steer-token") as steve,
    ):
        held = hold(one)
        request = await watcher.request(held.call)
        refused = await watcher.answer(request, option="allow")
        assert (refused["type"], refused["code"]) == ("error", "unauthorized")
        for human, kind, allowed in (
            (ann, INSTRUCT, False),
            (ann, "control.cancel", False),
            (watcher, INSTRUCT, False),
            (steve, INSTRUCT, True),
        ):
            ack = await human.ack(await human.send(command("s1", kind, data={"text": "hello"})))
            assert (ack["type"] == "control.accepted") == allowed
            assert allowed or ack["code"] == "unauthorized"
        assert (await ann.answer(request, option="deny"))["type"] == "control.accepted"
        assert await held.verdict() is not None
        answered = await watcher.wait(lambda frame: frame["type"] == "attention.answered")
        assert answered["data"]["by"] == "Ann"
        second = hold(one)
        await steve.answer(await steve.request(second.call), option="allow")
        assert await second.verdict() is None


async def test_without_a_token_control_does_not_start() -> None:
    url = "redis://127.0.0.1:1"
    with pytest.raises(SettingsError, match="AEP_KIMI_CONTROL"):
        Service(Settings(redis_url=url, control=True))
    with pytest.raises(SettingsError, match="AEP_INSTRUCT"):
        Service(Settings(redis_url=url, instruct=True))
    with pytest.raises(SettingsError, match="AEP_CAPTURE_ATTENTION"):
        Service(
            Settings(
                redis_url="redis://127.0.0.1:1",
                control=True,
                token="12345678",
                capture_attention=Capture.NONE,
            )
        )


async def test_a_token_of_the_command_line_is_needed_by_nobody_else(redis_server: AnyServer) -> None:
    settings: dict[str, Any] = {"token": None, "headers": None, "control_token": "made-by-serve"}
    async with (
        replicas(redis_server, 1, **settings) as (one,),
        desk(one.url, "") as stranger,
        desk(one.url, "made-by-serve") as human,
    ):
        held = hold(one)
        request = await stranger.request(held.call)
        assert (await stranger.answer(request, option="allow"))["code"] == "unauthorized"
        assert (await human.answer(request, option="deny"))["type"] == "control.accepted"
        assert await held.verdict() is not None


async def test_commands_are_seen_live_and_acks_replay(redis_server: AnyServer) -> None:
    async with replicas(redis_server) as (one, other), desk(one) as sender, desk(other) as watcher:
        held = hold(one)
        request = await sender.request(held.call)
        ack = await sender.answer(request, option="allow")
        await watcher.wait(lambda frame: frame.get("id") == sender.sent[0]["id"])
        await watcher.terminal(request)
        assert await held.verdict() is None
        events = (await other.replay()).events
        assert sender.sent[0]["id"] not in {event["id"] for event in events}
        assert ack["id"] in {event["id"] for event in events}
        await until(lambda: len(one.service.holding) == 0)


def _acks(texts: list[str], command_id: str) -> list[str]:
    return [text for text in texts if f'"cause":"{command_id}"' in text and '"type":"control.' in text]


async def _more(human: Any) -> None:
    count = len(human.frames)
    await human.wait(lambda _: len(human.frames) > count)
