"""`aep-kimi doctor`: every finding has a remedy, and the exit code says whether there is one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.doctor import clocks, counts
from deploy.cli.main import main
from tests.app.replica import running, until
from tests.servers import AnyServer


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AEP_URL", "AEP_TOKEN", "AEP_RELAY_URL", "AEP_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KIMI_CODE_HOME", str(tmp_path / "kimi"))


async def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    code = await asyncio.to_thread(main, ["doctor", "--json", *words])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {line["about"]: (line["verdict"], line["text"]) for line in lines}


async def test_all_is_well(redis_server: AnyServer, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(redis_server) as replica:
        await until(lambda: replica.service.offset_ms is not None)
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
    assert code == 0, found
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "service": "ok",
        "token": "ok",
        "Redis": "ok",
        "clocks": "ok",
        "relay": "note",
    }


async def test_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = await doctor(capsys, "--url", "http://127.0.0.1:1", "--no-hooks")
    assert code == 1
    assert found["service"][0] == "wrong"
    assert "aep-kimi serve" in found["service"][1]


async def test_a_wrong_token_and_no_token(
    redis_server: AnyServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(redis_server, token="correct-horse") as replica:
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
        assert (code, found["token"][0]) == (1, "wrong")
        assert "set AEP_TOKEN" in found["token"][1]
        assert found["details"][0] == "note"
        monkeypatch.setenv("AEP_TOKEN", "wrong-horse")
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
        assert (code, found["token"][0]) == (1, "wrong")
        assert "wrong-horse" not in json.dumps(found)
        monkeypatch.setenv("AEP_TOKEN", "correct-horse")
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
        assert (code, found["token"]) == (0, ("ok", "accepted"))


async def test_no_redis_and_no_link(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEP_RELAY_URL", "http://127.0.0.1:1")
    async with running("redis://127.0.0.1:1", hook_timeout_ms=250) as replica:
        await replica.hook("Stop")
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
    assert code == 1
    assert found["Redis"][0] == "wrong"
    assert found["relay"][0] == "wrong"
    assert found["since the start"][1].startswith("1 events of hooks were not stored")


async def test_hooks_that_are_not_there(redis_server: AnyServer, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(redis_server) as replica:
        code, found = await doctor(capsys, "--url", replica.url)
    assert (code, found["hooks"][0]) == (1, "wrong")
    assert "aep-setup write kimi-code" in found["hooks"][1]


@pytest.mark.parametrize(
    ("offsets", "verdict"),
    [
        ({"a": 3}, "ok"),
        ({"a": 251, "b": -249}, "ok"),
        ({"a": 251, "b": -250}, "wrong"),
        ({"a": 900}, "wrong"),
        ({}, "note"),
        (None, "note"),
    ],
)
def test_clocks(offsets: Any, verdict: str) -> None:
    (finding,) = clocks(offsets)
    assert finding.verdict == verdict
    if verdict == "wrong":
        assert "chrony" in finding.text


def test_counts() -> None:
    counters = {"hooks.stored.no": 5, "hooks.limited": 2, "hooks.failed": 0}
    told = [finding.text for finding in counts({"counters": counters, "feed_missed": 7})]
    assert [text.split()[0] for text in told] == ["3", "2", "7"]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [("AEP_KIMI_WEB_CONTROL", "1", "AEP_KIMI_WEB_MODE=primary"), ("AEP_BUFFER", "many", "AEP_BUFFER")],
)
async def test_settings_that_do_nothing_or_are_wrong(
    name: str,
    value: str,
    remedy: str,
    redis_server: AnyServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(redis_server) as replica:
        monkeypatch.setenv(name, value)
        code, found = await doctor(capsys, "--url", replica.url, "--no-hooks")
    assert code == 1
    assert found["settings"][0] == "wrong"
    assert remedy in found["settings"][1]
    assert found["service"][0] == "ok"
