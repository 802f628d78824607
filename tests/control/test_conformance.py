"""The official SDK's control client and the specification's live checker, with gates on another replica."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.control import ControlClient, NackError

from tests.control.desk import INSTRUCT, RESPOND, TOKEN, desk
from tests.control.fleet import fleet
from tests.servers import AnyServer
from tests.vendor.install import Unavailable, node

pytestmark = pytest.mark.slow


def commanded(url: str, session: str, kind: str, **more: Any) -> dict[str, Any]:
    """Send one command as an SDK user does."""
    client = ControlClient(url, agent="sdk", host="tests", token=TOKEN)
    client.connect()
    try:
        ack: dict[str, Any] = client.send(kind, session, ack_window_ms=10_000, **more)
        return ack
    finally:
        client.close()


def roster(url: str) -> list[dict[str, Any]]:
    client = ControlClient(url, agent="sdk", host="tests", token=TOKEN)
    client.connect()
    try:
        answer = client.roster()
        return list(answer["entries"] if isinstance(answer, dict) else answer)
    finally:
        client.close()


async def test_the_sdk_answers_and_steers_across_replicas(redis_server: AnyServer) -> None:
    async with fleet(redis_server, 2) as (one, other), desk(one.url) as watcher:
        await one.hook("UserPromptSubmit", "sdk")
        (entry,) = await asyncio.to_thread(roster, other.url)
        assert entry["session"] == "sdk"
        assert entry["control"]["accepts"] == [RESPOND, INSTRUCT]

        held = one.hold("sdk")
        request = await watcher.request(held.call)
        answer = {"answer": {"text": "no, use the staging registry"}}
        more: dict[str, Any] = {"subject": request["id"], "cause": request["id"], "data": answer}
        ack = await asyncio.to_thread(commanded, other.url, "sdk", RESPOND, **more)
        assert ack["type"] == "control.accepted"
        assert await held.verdict() == "no, use the staging registry"

        with pytest.raises(NackError) as late:
            await asyncio.to_thread(commanded, other.url, "sdk", RESPOND, **more)
        assert (late.value.reason, late.value.synthesized) == ("refused", False)
        assert "deny" in (late.value.detail or "")

        with pytest.raises(NackError) as cancelled:
            await asyncio.to_thread(
                commanded, other.url, "sdk", "control.cancel", data={"scope": "run"}, run=request["run"]
            )
        assert cancelled.value.reason == "unsupported"
        assert "hooks" in (cancelled.value.detail or "")

        await asyncio.to_thread(commanded, other.url, "sdk", INSTRUCT, data={"text": "be short"})
        assert (await one.hook("UserPromptSubmit", "sdk", is_steer=False)).json() == {"message": "be short"}


@pytest.mark.vendor
async def test_the_live_checker_of_the_specification(
    redis_server: AnyServer, spec_dir: Path, tmp_path: Path
) -> None:
    checker = next(
        (path for path in (spec_dir / "conformance" / "live.js", spec_dir / "live.js") if path.exists()), None
    )
    if checker is None:
        pytest.skip("AEP_SPEC_DIR has no conformance/live.js")
    try:
        program = node()
    except Unavailable as error:
        pytest.skip(str(error))
    async with fleet(redis_server, 2) as (one, other):
        await one.hook("UserPromptSubmit", "live-session")
        report = tmp_path / "report.json"
        for declared in (RESPOND, INSTRUCT):
            words = [str(program), str(checker), other.url, "--token", TOKEN, "--json", str(report)]
            words += ["--control-session", "live-session", "--control-accepts", declared]
            words += ["--ack-window", "2000"]
            words += [
                "--checks",
                "control-ack,control-nack-unsupported,control-dedupe,control-behalf-refusal",
            ]
            done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout
            verdicts = json.loads(report.read_text())
            assert verdicts["summary"]["fail"] == 0, done.stdout
            assert verdicts["summary"]["pass"] == 4, done.stdout
