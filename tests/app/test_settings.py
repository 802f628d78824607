"""Settings: the environment only, and errors that name the variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handlers.aep.levels import Capture
from handlers.errors import SettingsError
from handlers.settings import Settings


def test_an_empty_environment_is_enough() -> None:
    settings = Settings.from_env({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8398)
    assert settings.url == "http://127.0.0.1:8398"
    assert settings.capture is Capture.METADATA
    assert settings.capture_attention is Capture.REDACTED
    assert settings.redis_url is None
    assert settings.emitter


def test_every_value_is_read() -> None:
    settings = Settings.from_env(
        {
            "AEP_PORT": "9000",
            "AEP_TOKEN": "correct-horse",
            "AEP_EMITTER": "anna.laptop",
            "AEP_CAPTURE": "FULL",
            "AEP_SECRET_NAMES": "MY_KEY, OTHER_KEY EMPTY",
            "MY_KEY": "s3cret-value",
            "OTHER_KEY": "another-one",
            "EMPTY": "",
            "HOME": "/home/anna",
            "AEP_PII": "off",
            "AEP_KIMI_GATE_TOOLS": "Bash,Write",
            "AEP_KIMI_WEB_MODE": "primary",
            "AEP_BUFFER": "8",
            "AEP_REDIS_URL": "redis://localhost:6379/3",
            "AEP_REDIS_PREFIX": "team1",
            "AEP_SHARDS": "16",
        }
    )
    assert settings.url == "http://127.0.0.1:9000"
    assert settings.secrets == ("s3cret-value", "another-one")
    assert settings.homes == ("/home/anna",)
    assert settings.gate_tools == ("Bash", "Write")
    assert (settings.pii, settings.web_mode, settings.buffer) == (False, "primary", 8)
    assert (settings.redis_prefix, settings.shards) == ("team1", 16)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AEP_PORT", "eighty"),
        ("AEP_PORT", "70000"),
        ("AEP_CAPTURE", "everything"),
        ("AEP_PII", "maybe"),
        ("AEP_BUFFER", "0"),
        ("AEP_BUFFER", "-1"),
        ("AEP_TOKEN", "short"),
        ("AEP_TOKEN", "has a blank in it"),
        ("AEP_EMITTER", "no/slashes"),
        ("AEP_RELAY_URL", "relay.example"),
        ("AEP_RELAY_URL", "http://host:port"),
        ("AEP_REDIS_URL", "localhost:6379"),
        ("AEP_REDIS_PREFIX", "a{b}"),
        ("AEP_KIMI_WEB_MODE", "both"),
        ("AEP_ATTENTION_TIMEOUT_MS", "1e3"),
    ],
)
def test_an_error_begins_with_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert caught.value.variable == name


def test_secrets_are_not_shown() -> None:
    settings = Settings.from_env({"AEP_TOKEN": "correct-horse", "AEP_REDIS_URL": "redis://:pw@h"})
    assert "correct-horse" not in repr(settings)
    assert "pw" not in repr(settings)


def test_the_readme_lists_every_variable() -> None:
    root = Path(__file__).parents[2]
    read = set(re.findall(r'reader\.\w+\(\s*"(AEP_\w+)"', (root / "handlers/settings.py").read_text("utf-8")))
    listed = set(re.findall(r"^\| `(AEP_\w+)`", (root / "README.md").read_text("utf-8"), re.MULTILINE))
    assert read
    assert read <= listed
