"""What can be configured: environment only, read once, every variable in one table.

A value that cannot be understood raises `SettingsError`, whose message begins with the variable's name.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from handlers.aep.levels import Capture
from handlers.errors import SettingsError

WebMode = Literal["companion", "primary"]
Style = Literal["text", "json"]

DEFAULT_PORT = 8398
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one process. Times are milliseconds, sizes are bytes."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    url: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    token: str | None = field(default=None, repr=False)
    tokens_file: str | None = None
    control_token: str | None = field(default=None, repr=False)
    """A token that authenticates and that nobody needs; `aep-kimi serve` makes it where there is no other."""
    allowed_hosts: tuple[str, ...] = ()
    emitter: str = "localhost"
    capture: Capture = Capture.METADATA
    capture_attention: Capture = Capture.REDACTED
    secrets: tuple[str, ...] = field(default=(), repr=False)
    homes: tuple[str, ...] = ()
    pii: bool = True
    acp_deltas: bool = False
    control: bool = False
    gate_tools: tuple[str, ...] = ()
    attention_timeout_ms: int = 50_000
    max_held: int = 4_000
    instruct: bool = False
    web_control: bool = False
    web_mode: WebMode = "companion"
    buffer: int = 10_000
    log: Style = "text"
    log_level: str = "info"
    rate: int = 0
    """Events per second that a token may hand in to one process; 0 for no limit."""
    max_body: int = 32 * 1024 * 1024
    max_batch: int = 10_000
    max_from: int = 1_024
    hook_timeout_ms: int = 250
    relay_url: str | None = None
    relay_token: str | None = field(default=None, repr=False)
    redis_url: str | None = field(default=None, repr=False)
    redis_prefix: str = "aep"
    redis_wait: int = 0
    """How many replicas of Redis must confirm a commit before it counts as stored."""
    shards: int = 1
    data_dir: str | None = None

    @property
    def answers_web(self) -> bool:
        """Whether approvals of `kimi web` are answered: only where its frames carry the whole story."""
        return self.web_control and self.web_mode == "primary"

    @property
    def idle(self) -> str | None:
        """What was set and has no effect, in a sentence that says what it lacks."""
        if self.web_control and not self.answers_web:
            return "AEP_KIMI_WEB_CONTROL does nothing without AEP_KIMI_WEB_MODE=primary"
        return None

    @property
    def controls(self) -> str | None:
        """The variable that lets something be commanded; None where nothing can be."""
        if self.control:
            return "AEP_KIMI_CONTROL"
        if self.instruct:
            return "AEP_INSTRUCT"
        return "AEP_KIMI_WEB_CONTROL" if self.answers_web else None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read `env` (the process environment by default)."""
        reader = _Reader(os.environ if env is None else env)
        port = reader.integer("AEP_PORT", DEFAULT_PORT, 0, 65_535)
        return cls(
            host=reader.text("AEP_HOST") or "127.0.0.1",
            port=port,
            url=reader.url("AEP_URL", ("http", "https")) or f"http://127.0.0.1:{port or DEFAULT_PORT}",
            token=reader.token("AEP_TOKEN"),
            tokens_file=reader.text("AEP_TOKENS_FILE"),
            allowed_hosts=tuple(name.lower() for name in reader.names("AEP_ALLOWED_HOSTS")),
            emitter=reader.emitter("AEP_EMITTER"),
            capture=reader.capture("AEP_CAPTURE", Capture.METADATA),
            capture_attention=reader.capture("AEP_CAPTURE_ATTENTION", Capture.REDACTED),
            secrets=reader.secrets("AEP_SECRET_NAMES"),
            homes=reader.homes(),
            pii=reader.flag("AEP_PII", True),
            acp_deltas=reader.flag("AEP_ACP_DELTAS", False),
            control=reader.flag("AEP_KIMI_CONTROL", False),
            gate_tools=reader.names("AEP_KIMI_GATE_TOOLS"),
            attention_timeout_ms=reader.integer("AEP_ATTENTION_TIMEOUT_MS", 50_000, 1_000, 590_000),
            max_held=reader.integer("AEP_MAX_HELD", 4_000, 1, 100_000),
            instruct=reader.flag("AEP_INSTRUCT", False),
            web_control=reader.flag("AEP_KIMI_WEB_CONTROL", False),
            web_mode=reader.choice("AEP_KIMI_WEB_MODE", "companion", _web_mode, "companion or primary"),
            buffer=reader.integer("AEP_BUFFER", 10_000, 1, 1_000_000),
            log=reader.choice("AEP_LOG", "text", _style, "text or json"),
            log_level=reader.choice("AEP_LOG_LEVEL", "info", _level, "debug, info, warning or error"),
            rate=reader.integer("AEP_RATE", 0, 0, 1_000_000),
            max_body=reader.integer("AEP_MAX_BODY", 32 * 1024 * 1024, 1_024, 1 << 30),
            max_batch=reader.integer("AEP_MAX_BATCH", 10_000, 1, 1_000_000),
            max_from=reader.integer("AEP_MAX_FROM", 1_024, 1, 100_000),
            hook_timeout_ms=reader.integer("AEP_HOOK_TIMEOUT_MS", 250, 20, 10_000),
            relay_url=reader.url("AEP_RELAY_URL", ("http", "https", "ws", "wss")),
            relay_token=reader.token("AEP_RELAY_TOKEN"),
            redis_url=reader.redis("AEP_REDIS_URL"),
            redis_prefix=reader.name("AEP_REDIS_PREFIX", "aep"),
            redis_wait=reader.integer("AEP_REDIS_WAIT", 0, 0, 16),
            shards=reader.integer("AEP_SHARDS", 1, 1, 1_024),
            data_dir=reader.text("AEP_DATA_DIR"),
        )


def _web_mode(value: str) -> WebMode | None:
    return "companion" if value == "companion" else "primary" if value == "primary" else None


def _style(value: str) -> Style | None:
    return "text" if value == "text" else "json" if value == "json" else None


def _level(value: str) -> str | None:
    return value if value in {"debug", "info", "warning", "error"} else None


def _capture(value: str) -> Capture | None:
    try:
        return Capture(value)
    except ValueError:
        return None


class _Reader:
    """Typed look-ups in one environment. An empty variable counts as absent."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str) -> str | None:
        return self._env.get(name, "").strip() or None

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"[0-9]{1,12}", value) or not low <= int(value) <= high:
            raise SettingsError(name, f"expected a whole number from {low} to {high}, not {value!r}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._env.get(name)
        if value is None:
            return default
        word = value.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise SettingsError(name, f"expected 1 or 0, not {value!r}")

    def choice(self, name: str, default: T, parse: Callable[[str], T | None], allowed: str) -> T:
        value = self.text(name)
        if value is None:
            return default
        parsed = parse(value.lower())
        if parsed is None:
            raise SettingsError(name, f"expected {allowed}, not {value!r}")
        return parsed

    def capture(self, name: str, default: Capture) -> Capture:
        return self.choice(name, default, _capture, "none, metadata, redacted or full")

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part for part in re.split(r"[,\s]+", self.text(name) or "") if part)

    def name(self, name: str, default: str) -> str:
        value = self.text(name) or default
        if not _NAME.fullmatch(value):
            raise SettingsError(
                name, f"expected letters, digits, dots, dashes and underscores, not {value!r}"
            )
        return value

    def emitter(self, name: str) -> str:
        host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._") or "localhost"
        return self.name(name, host)

    def token(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not re.fullmatch(r"[\x21-\x7e]{8,512}", value):
            raise SettingsError(name, "expected 8 to 512 printable ASCII characters without blanks")
        return value

    def secrets(self, name: str) -> tuple[str, ...]:
        found = []
        for variable in self.names(name):
            value = self._env.get(variable, "")
            if len(value) >= 4:
                found.append(value)
        return tuple(found)

    def homes(self) -> tuple[str, ...]:
        home = self.text("HOME") or os.path.expanduser("~")
        return (home,) if home.startswith(("/", "\\")) and len(home) > 1 else ()

    def url(self, name: str, schemes: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018 - raises on a port that is not a number
        except ValueError:
            raise SettingsError(name, f"not a URL: {value!r}") from None
        if parts.scheme not in schemes or not parts.hostname:
            raise SettingsError(name, f"expected a URL of {' or '.join(schemes)}, not {value!r}")
        return value.rstrip("/")

    def redis(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and "://" not in value:
            raise SettingsError(name, "expected a URL such as redis://host:6379/0")
        return value
