"""Where the service is, and with what token: what is wrong there is told in a sentence, not a traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.cli.client import ServiceError, address
from deploy.cli.main import main
from tests.app.replica import running
from tests.servers import AnyServer, free_port

TOKEN = "a-token-of-this-service"
COMMANDS = (
    ("instruct", "s1", "text"),
    ("cancel", "s1"),
    ("respond", "-", "allow"),
    ("pending",),
    ("timeline", "s1"),
    ("tail", "--once"),
    ("doctor", "--no-hooks"),
    ("sink", "--once", "--out", "sunk"),
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AEP_URL", "AEP_TOKEN", "AEP_RELAY_URL", "AEP_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "ftp://host",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://127.0.0.1:0",
        "http://[::1",
        "http://a host",
        "http://host/\nx",
    ],
)
def test_what_is_no_address_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEP_URL", url)
    for given in (url, None):
        with pytest.raises(ServiceError, match="not a URL"):
            address(given)


@pytest.mark.parametrize("token", ["line\nbreak", "schlüssel", "with blank"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_token_that_no_header_can_carry_is_not_shown(
    words: tuple[str, ...], token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AEP_TOKEN", token)
    assert main(words) in (1, 2)
    out, err = capsys.readouterr()
    assert "AEP_TOKEN: expected" in out + err
    assert token not in out + err


@pytest.mark.parametrize("token", ["", "not-the-token-of-it"])
@pytest.mark.parametrize("words", COMMANDS[:-1], ids=lambda words: words[0])
async def test_a_token_that_is_refused(
    redis_server: AnyServer,
    words: tuple[str, ...],
    token: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(redis_server, token=TOKEN, headers={"Authorization": f"Bearer {TOKEN}"}) as replica:
        monkeypatch.setenv("AEP_URL", replica.url)
        monkeypatch.setenv("AEP_TOKEN", token)
        assert await asyncio.to_thread(main, words) == 1
    out, err = capsys.readouterr()
    assert "token" in (out + err).lower()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_service(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AEP_URL", url)
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert url in out + err
    assert "[Errno" not in out + err
