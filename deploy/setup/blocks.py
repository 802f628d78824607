"""What is registered: the events of a vendor version, the command of each, and both as TOML. Pure.

Sources: kimi-code 2.1.0 and 0.28.0 hook runner and hooks section (`event`, `matcher`, `command`, `timeout`;
one entry outside that schema disables every hook of the user).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from deploy.setup.errors import SetupError

EVENTS_16 = (
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PermissionRequest",
    "PermissionResult",
    "UserPromptSubmit",
    "Stop",
    "StopFailure",
    "Interrupt",
    "SessionStart",
    "SessionEnd",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "Notification",
)
EVENTS_20 = (*EVENTS_16, "UserPromptQueued", "TurnStarted", "SessionHeartbeat", "TaskStarted")

DETACHED = frozenset({"PostToolUse", "PostToolUseFailure"})
"""Newer vendors kill these hooks when the turn ends, so their shim lets go of the agent first."""

SHIM_NAME = "kimi_hook.py"
TIMEOUT_S = 10
CONTROL_TIMEOUT_S = 60
CONTROL_SHIM_MS = 55000
DEFAULT_URL = "http://127.0.0.1:8398"

_GUARD = " || exit 0"
_SHIELD = "trap '' TERM; "
"""Ahead of a detached shim: `sh` ignores SIGTERM from its first millisecond on and the interpreter inherits
that, so that a kill 3 to 50 ms after the start does not meet an interpreter that is still loading."""
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_TOML_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_OBSERVER = re.compile(
    r"(?:^|[\s/'\"\\])kimi[-_]hook(?:\.(?:[cm]?js|py|sh|exe|cmd))?(?=$|[\s'\"])|:8398(?!\d)"
)


@dataclass(frozen=True, slots=True)
class Registration:
    """What one `write` registers. `url` is the full `/hook` address; paths are absolute.

    `setsid` is the path of that program where the system has it: ahead of a detached shim it takes the
    interpreter out of reach of SIGKILL too, which follows 100 ms after SIGTERM and so meets an interpreter
    that loads slowly on a busy machine.
    """

    python: str
    shim: str
    url: str
    token_file: str = ""
    control: bool = False
    events: tuple[str, ...] = EVENTS_16
    windows: bool = False
    setsid: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """One `[[hooks]]` entry; `timeout` in seconds."""

    event: str
    command: str
    timeout: int


@dataclass(frozen=True, slots=True)
class Call:
    """A command of ours taken apart; `timeout_ms` is the shim's own limit, None for its default."""

    python: str
    shim: str
    url: str
    token_file: str = ""
    timeout_ms: int | None = None
    detach: bool = False


def hook_url(url: str) -> str:
    """The full `/hook` address for a base or full address; raises SetupError for what the shim cannot use."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \"'\\`$<>")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise SetupError(f"`{url}` is not an address of the service; give one like {DEFAULT_URL}")
    if "@" in parts.netloc:
        raise SetupError(
            "the address carries a user or password; put the token in a file and use --token-file"
        )
    if parts.query or parts.fragment:
        raise SetupError(f"`{url}` has a query or fragment; give the address without it")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/hook') else path + '/hook'}"


def base_url(url: str) -> str:
    """The service's base for a full `/hook` address."""
    return url.removesuffix("/hook")


def hooks(registration: Registration) -> tuple[Hook, ...]:
    """The entries to register, in the order of the events."""
    return tuple(
        Hook(
            event,
            command(registration, event),
            CONTROL_TIMEOUT_S if _held(registration, event) else TIMEOUT_S,
        )
        for event in registration.events
    )


def command(registration: Registration, event: str) -> str:
    """The command of one event.

    Whatever it ends with, a missing interpreter (127) or a missing shim (2, which would block the agent), the
    guard makes it 0; and no part writes to standard output but the shim.
    """
    quote = quote_cmd if registration.windows else quote_sh
    words = [
        quote(registration.python),
        "-I",
        "-S",
        quote(registration.shim),
        registration.url if _SAFE.fullmatch(registration.url) else quote(registration.url),
    ]
    if _held(registration, event):
        words += ["--timeout", str(CONTROL_SHIM_MS)]
    if event in DETACHED:
        words.append("--detach")
    if registration.token_file:
        words += ["--token-file", quote(registration.token_file)]
    shield = ""
    if event in DETACHED and not registration.windows:
        shield = _SHIELD + (f"{quote(registration.setsid)} " if registration.setsid else "")
    return shield + " ".join(words) + _GUARD


def _held(registration: Registration, event: str) -> bool:
    return registration.control and event == "PreToolUse"


def quote_sh(text: str) -> str:
    """One word for `sh -c`, always in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def quote_cmd(text: str) -> str:
    """One word for `cmd /d /s /c`, as Kimi Code uses on Windows; raises SetupError where none can be made."""
    if bad := set(text) & set('"%\n\r'):
        raise SetupError(
            f"Windows cannot run a command whose path has {' '.join(sorted(map(repr, bad)))}: `{text}`; "
            "install aep-kimi in another folder"
        )
    return f'"{text}"'


def quote_toml(text: str) -> str:
    """A TOML basic string; raises SetupError for a path that is not Unicode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        shown = text.encode("utf-8", "backslashreplace").decode()
        raise SetupError(
            f"the path `{shown}` is not UTF-8 and TOML cannot hold it; use another folder"
        ) from None
    return '"' + "".join(_TOML_ESCAPES.get(c) or (c if c.isprintable() else _escape(c)) for c in text) + '"'


def _escape(char: str) -> str:
    if char == " " or (ord(char) > 0x9F and ord(char) not in (0x2028, 0x2029)):
        return char
    return f"\\u{ord(char):04X}"


def render(entries: tuple[Hook, ...], eol: str) -> str:
    """The entries as TOML, each line ended with `eol`."""
    lines = []
    for entry in entries:
        lines += [
            "[[hooks]]",
            f'event = "{entry.event}"',
            f"command = {quote_toml(entry.command)}",
            f"timeout = {entry.timeout}",
        ]
    return "".join(line + eol for line in lines)


def parse_command(text: str) -> Call | None:
    """A command as `command` makes it, for any interpreter, path, address and version of ours; else None."""
    if not text.endswith(_GUARD):
        return None
    words = _split(text.removeprefix(_SHIELD).removesuffix(_GUARD))
    if text.startswith(_SHIELD) and words and words[0].rpartition("/")[2] == "setsid":
        del words[0]
    if len(words) < 5 or words[1:3] != ["-I", "-S"] or re.split(r"[/\\]", words[3])[-1] != SHIM_NAME:
        return None
    token, timeout, detach = "", None, False
    rest = iter(words[5:])
    for word in rest:
        if word == "--detach":
            detach = True
        elif word == "--token-file":
            token = next(rest, "")
        elif word == "--timeout":
            value = next(rest, "")
            timeout = int(value) if value.isascii() and value.isdigit() else None
    return Call(words[0], words[3], words[4], token, timeout, detach)


def _split(text: str) -> list[str]:
    if text.startswith('"'):
        return [word.strip('"') for word in re.findall(r'"[^"]*"|[^\s"]+', text)]
    try:
        return shlex.split(text)
    except ValueError:
        return []


def is_observer(text: str) -> bool:
    """Whether a command that is not ours looks like another observer for the same service."""
    return parse_command(text) is None and bool(_OBSERVER.search(text))
