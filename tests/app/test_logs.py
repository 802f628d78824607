"""One line a record, with the request's id, and no content."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from handlers import request_ids
from handlers.app import ServerLog
from handlers.errors import HandlerError
from handlers.logs import configure
from handlers.settings import Settings
from tests.app.replica import Replica


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure("json", "info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def entries(log: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_an_object_a_line(log: io.StringIO) -> None:
    token = request_ids.current.set(b"req-1")
    logging.getLogger("handlers.x").warning("two\nlines of %s", "\x1b[31m")
    request_ids.current.reset(token)
    logging.getLogger("handlers.x").debug("too quiet")
    (entry,) = entries(log)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "logger": "handlers.x",
        "message": "two\nlines of \x1b[31m",
        "request": "req-1",
    }


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_value_in_an_error_is_not_quoted(log: io.StringIO, style: str) -> None:
    configure("json" if style == "json" else "text", "info", log)
    for error in (KeyError("secret words"), HandlerError("known words")):
        try:
            raise error
        except Exception:
            logging.getLogger("handlers.x").exception("it failed")
    first, second = log.getvalue().splitlines()
    assert "secret" not in first
    assert "KeyError" in first
    assert "test_logs.py" in first
    assert "known words" in second


def test_text_stays_on_its_line(log: io.StringIO) -> None:
    configure("text", "info", log)
    logging.getLogger("handlers.x").info("a\nINFO forged: b\x1b[0m")
    assert log.getvalue() == "INFO handlers.x: a?INFO forged: b?[0m\n"


async def test_a_hook_that_fails_is_found_by_its_id(
    log: io.StringIO, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the secret prompt")

    monkeypatch.setattr("handlers.hook_route.map_hook", fail)
    payload = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "the secret prompt"}
    response = await replica.client.post("/hook", json=payload, headers={"x-request-id": "find-me"})
    assert (response.status_code, response.json(), response.headers["aep-stored"]) == (200, {}, "no")
    found = [entry for entry in entries(log) if entry.get("request") == "find-me"]
    assert "could not be handled" in found[0]["message"]
    assert "the secret prompt" not in log.getvalue()


def test_strangers_cannot_fill_the_log_of_the_server() -> None:
    """uvicorn has a warning for each request that is no HTTP, and an error for each refused handshake."""
    bounded = ServerLog()
    told = []
    for number in range(300):
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "no HTTP", (), None)
        record.created = 1_000.0 + number / 100
        told += [number] if bounded.filter(record) else []
    assert told == [*range(20), *range(100, 120), *range(200, 220)]
    answered = "ASGI callable returned without completing handshake."
    assert not ServerLog().filter(
        logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, answered, (), None)
    )


def test_settings() -> None:
    found = Settings.from_env({"AEP_LOG": "JSON", "AEP_LOG_LEVEL": "Warning"})
    assert (found.log, found.log_level) == ("json", "warning")
