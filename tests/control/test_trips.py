"""What an answer costs: the commands that it sends to Redis, counted and not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state.keys import SessionKey
from state.link import _Pipe
from state.lua import Script
from tests.app.replica import until
from tests.control.desk import desk, hold, replicas
from tests.servers import AnyServer

SCRIPTS = {
    Script(name).sha.encode(): name for name in ("load", "publish", "commit", "claims", "lease", "release")
}
ROUTE = ["claims?", "load"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What all replicas together sent about a session, in order, and for the claims of connections."""
    packed: list[bytes] = []
    send = _Pipe.send

    def noted(self: _Pipe, command: bytes) -> Any:
        packed.append(command)
        return send(self, command)

    monkeypatch.setattr(_Pipe, "send", noted)

    def of(session: str) -> list[str]:
        marks = (session.encode(), SessionKey("testhost", session).hash.encode())
        return [name for name in (_name(command, marks) for command in packed) if name]

    return of


def _name(command: bytes, marks: tuple[bytes, bytes]) -> str | None:
    words = command.split(b"\r\n")
    if words[2] == b"ZRANGE" and words[4].endswith(b":claims"):
        return "claims?"
    if not any(mark in command for mark in marks):
        return None
    return SCRIPTS.get(words[4]) or words[2].decode()


@pytest.mark.parametrize(
    ("answer", "here", "elsewhere"),
    [
        ({"option": "allow"}, [], ["load"]),
        ({"option": "deny"}, [], ["load"]),
        ({"option": "deny", "text": "no"}, [], ["load", "GET"]),
    ],
)
async def test_an_answer_takes_as_few_commands_as_it_can(
    redis_server: AnyServer,
    sent: Callable[[str], list[str]],
    answer: dict[str, str],
    here: list[str],
    elsewhere: list[str],
) -> None:
    async with replicas(redis_server, 2) as (one, other), desk(one) as human:
        # The scripts are known to the server from here on, and the desk's own claim is none.
        warm = hold(one, "warm")
        await human.answer(await human.request(warm.call), **answer)
        await warm.verdict()
        for holder, more in ((one, here), (other, elsewhere)):
            session = f"trips-{holder is one}"
            held = hold(holder, session)
            request = await human.request(held.call)
            before = len(sent(session))
            await human.answer(request, **answer)
            await held.verdict()
            closing = ["commit"] if holder is other else []
            assert sorted(sent(session)[before:]) == sorted([*ROUTE, "publish", "commit", *more, *closing])
            await until(lambda: len(one.service.holding) + len(other.service.holding) == 0)
