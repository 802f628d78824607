"""Nobody commands, answers or instructs the sessions of the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.app.duplex import command, duplex, event
from tests.control.desk import INSTRUCT, RESPOND, desk
from tests.tenants.conftest import SESSION, House, Tenant, whose


def prompt(tenant: Tenant, session: str = SESSION) -> asyncio.Task[dict[str, str]]:
    async def told() -> dict[str, str]:
        answer: dict[str, str] = (await tenant.hook("UserPromptSubmit", session, prompt="go on")).json()
        return answer

    return asyncio.create_task(told())


async def held(tenant: Tenant) -> asyncio.Task[dict[str, object]]:
    """A call of this tenant that waits for a human."""

    async def call() -> dict[str, object]:
        answer = await tenant.hook("PreToolUse", tool_name="Deploy", tool_call_id="c1", tool_input={})
        found: dict[str, object] = answer.json()
        return found

    return asyncio.create_task(call())


async def test_an_answer_reaches_only_ones_own_request(house: House) -> None:
    """Both sessions have one id and wait at once; each is answered by its own tenant only."""
    async with desk(house.replica, house.anna.token) as annas, desk(house.replica, house.ben.token) as bens:
        for tenant in (house.anna, house.ben):
            await tenant.hook("SessionStart", source="startup")
        annas_call, bens_call = await held(house.anna), await held(house.ben)
        request = await annas.request("c1")
        own = await bens.request("c1")
        assert request["id"] != own["id"]
        # Ben knows the id of Anna's request, and says it.
        refused = await bens.answer(request, option="deny")
        assert refused["type"] in ("control.rejected", "error")
        assert refused.get("source", "aep://ben/").startswith("aep://ben/")
        assert not annas_call.done()
        assert (await bens.answer(own, option="deny"))["type"] == "control.accepted"
        assert "deny" in str(await bens_call)
        assert not annas_call.done()
        assert (await annas.answer(request, option="allow"))["type"] == "control.accepted"
        assert await annas_call == {}
        for watcher, name in ((annas, "anna"), (bens, "ben")):
            events = watcher.connection.have()
            assert whose([entry for entry in events if "/agent/kimi-code/" in entry["source"]]) == {name}
    pending = [e for e in (await house.ben.replay()).events if e["type"].startswith("attention.")]
    assert whose(pending) == {"ben"}


async def test_commands_to_the_others_session_have_no_route(house: House) -> None:
    await house.anna.hook("SessionStart", "only-annas", source="startup")
    for kind in (RESPOND, INSTRUCT, "control.cancel"):
        async with desk(house.replica, house.ben.token) as bens:
            made = command("only-annas", kind, subject="x", data={"text": "rm -rf", "answer": {"text": "no"}})
            refused = await bens.ack(await bens.send(made))
            assert (refused["type"], refused["code"]) == ("error", "no-route"), kind
    assert await prompt(house.anna, "only-annas") == {}
    assert not [e for e in (await house.anna.replay()).events if e["type"].startswith("control.")]


async def test_an_instruction_reaches_only_ones_own_session(house: House) -> None:
    for tenant in (house.anna, house.ben):
        await tenant.hook("SessionStart", source="startup")
    async with desk(house.replica, house.ben.token) as bens:
        assert (await bens.instruct(SESSION, "for ben alone"))["type"] == "control.accepted"
    assert await prompt(house.anna) == {}
    assert await prompt(house.ben) == {"message": "for ben alone"}


async def test_the_same_command_of_both(house: House) -> None:
    """Two commands with one `(source, id)`: each is decided, and acknowledged, for its own tenant."""
    for tenant in (house.anna, house.ben):
        await tenant.hook("SessionStart", source="startup")
    made = command(SESSION, INSTRUCT, data={"text": "the words of ben"})
    async with desk(house.replica, house.ben.token) as bens:
        assert (await bens.ack(await bens.send(made)))["source"].startswith("aep://ben/")
    other = made | {"data": {"text": "the words of anna"}}
    async with desk(house.replica, house.anna.token) as annas:
        assert (await annas.ack(await annas.send(other)))["source"].startswith("aep://anna/")
    assert await prompt(house.anna) == {"message": "the words of anna"}
    assert await prompt(house.ben) == {"message": "the words of ben"}


async def test_commands_to_an_emitter_of_the_other(house: House) -> None:
    async with duplex(house.anna.url, house.anna.token) as emitter:
        await emitter.hello("emitter", capabilities={"control": {"accepts": ["control.cancel"]}})
        await emitter.send(event("annas-agent", 0))
        async with desk(house.replica, house.ben.token) as bens:
            made = command("annas-agent", "control.cancel")
            assert (await bens.ack(await bens.send(made)))["code"] == "no-route"
        async with desk(house.replica, house.anna.token) as annas:
            made = command("annas-agent", "control.cancel")
            await annas.send(made)
            assert (await emitter.until(lambda frame: frame["type"] == "control.cancel"))["id"] == made["id"]
    assert "annas-agent" not in str((await house.ben.replay()).events)


async def test_both_connect_an_emitter_for_one_session(house: House) -> None:
    """To each tenant there is one claimant; to the operator there are two, and none is guessed."""
    async with (
        duplex(house.anna.url, house.anna.token) as annas_agent,
        duplex(house.ben.url, house.ben.token) as bens_agent,
    ):
        for agent in (annas_agent, bens_agent):
            await agent.hello("emitter", capabilities={"control": {"accepts": ["control.cancel"]}})
            await agent.send(event("shared", 0))
            await agent.send({"type": "ping", "t": 1})
            await agent.until(lambda frame: frame["type"] == "pong")
        async with desk(house.replica, house.ops.token) as ops:
            made = command("shared", "control.cancel")
            assert (await ops.ack(await ops.send(made)))["code"] == "ambiguous"
        async with desk(house.replica, house.ben.token) as bens:
            made = command("shared", "control.cancel")
            await bens.send(made)
            assert (await bens_agent.until(lambda frame: frame["type"] == "control.cancel"))["id"] == made[
                "id"
            ]
        await annas_agent.send({"type": "ping", "t": 2})
        await annas_agent.until(lambda frame: frame == {"type": "pong", "t": 2})
        assert not [frame for frame in annas_agent.frames if frame["type"] == "control.cancel"]


async def test_the_operator_sees_and_commands_both(house: House) -> None:
    await house.anna.hook("SessionStart", "only-annas", source="startup")
    async with desk(house.replica, house.ops.token) as ops:
        assert (await ops.instruct("only-annas", "from the operator"))["type"] == "control.accepted"
    assert await prompt(house.anna, "only-annas") == {"message": "from the operator"}
    # To hand in events its token has no right.
    assert (await house.ops.hook("Stop")).status_code == 403


def revoke(file: Path, name: str) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if f" {name} " not in line))


async def test_a_revoked_token_ends_what_is_open(house: House) -> None:
    file = Path(house.replica.service.settings.tokens_file or "")
    async with (
        desk(house.replica, house.ben.token) as bens,
        desk(house.replica, house.anna.token) as annas,
        house.replica.client.stream("GET", "/stream", headers=house.ben.headers) as stream,
    ):
        revoke(file, "ben")
        closing = await bens.wait(lambda frame: frame["type"] == "closing")
        assert closing["reason"] == "unauthorized"
        async with asyncio.timeout(20):
            async for _ in stream.aiter_bytes():
                pass
        await house.anna.hook("Stop")
        await annas.wait(lambda frame: frame["type"].startswith("x.kimi-code"))
    assert (await house.ben.hook("Stop")).status_code == 401
