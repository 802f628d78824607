"""One isolated Kimi Code: its home, its configuration, and a run of `kimi -p`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .install import Install

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
EVENTS_20 = (*EVENTS_16, "TurnStarted", "UserPromptQueued", "TaskStarted", "SessionHeartbeat")
DETACHED = frozenset({"PostToolUse", "PostToolUseFailure"})
SESSION = re.compile(r"kimi (?:-r|--session|--resume) (\S+)")


@dataclass(frozen=True, slots=True)
class Hook:
    """One `[[hooks]]` entry of `config.toml`; `timeout` in seconds."""

    event: str
    command: str
    matcher: str = ""
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """What a `kimi -p` left: exit code, output, the session it named."""

    code: int
    stdout: str
    stderr: str

    @property
    def session(self) -> str | None:
        found = SESSION.search(self.stderr) or SESSION.search(self.stdout)
        return found[1] if found else None


def toml_string(text: str) -> str:
    """A TOML basic string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str], grace_s: float = 3.0) -> None:
    """End a process started with `start_new_session` and all that stayed in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@dataclass(slots=True)
class Kimi:
    """A Kimi Code with a home of its own under `base`: nothing of the user's is read or written.

    `code_home` is `KIMI_CODE_HOME`; `project` is the folder it works in. The environment has no key and no
    variable of this machine beyond PATH and the locale.
    """

    install: Install
    base: Path
    model_url: str
    extra_env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.code_home, self.project):
            folder.mkdir(parents=True, exist_ok=True)
        self.configure()

    @property
    def version(self) -> str:
        return self.install.version

    @property
    def v2(self) -> bool:
        return self.install.v2

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def code_home(self) -> Path:
        return self.home / ".kimi-code"

    @property
    def project(self) -> Path:
        return self.base / "project"

    @property
    def config(self) -> Path:
        return self.code_home / "config.toml"

    @property
    def events(self) -> tuple[str, ...]:
        """The hook events this version knows."""
        return EVENTS_20 if self.install.series >= (0, 32) else EVENTS_16

    @property
    def argv(self) -> list[str]:
        return [str(self.install.node), str(self.install.main)]

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if k in ("LANG", "LC_ALL", "TZ", "TMPDIR")}
        return {
            **keep,
            "PATH": f"{self.install.kimi.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "KIMI_CODE_HOME": str(self.code_home),
            "KIMI_DISABLE_TELEMETRY": "1",
            "KIMI_CODE_NO_AUTO_UPDATE": "1",
            "KIMI_CLI_NO_AUTO_UPDATE": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            **self.extra_env,
            **(extra or {}),
        }

    def configure(
        self, hooks: Iterable[Hook] = (), *, permission_mode: str = "manual", more: str = "", tail: str = ""
    ) -> None:
        """Write `config.toml`: the model server as provider, then the hooks. `more` goes among the top-level
        keys, `tail` after the last table."""
        attempts = "max_attempts_per_step" if self.install.series >= (0, 32) else "max_retries_per_step"
        lines = [
            'default_model = "mock/m1"',
            f'default_permission_mode = "{permission_mode}"',
            "telemetry = false",
            *([more] if more else []),
            "",
            "[providers.mock]",
            'type = "openai"',
            f'base_url = "{self.model_url}"',
            'api_key = "sk-mock-key-of-the-tests"',
            "",
            '[models."mock/m1"]',
            'provider = "mock"',
            'model = "m1"',
            "max_context_size = 200000",
            'capabilities = ["tool_use", "thinking"]',
            "",
            "[loop_control]",
            f"{attempts} = 1",
        ]
        for hook in hooks:
            lines += ["", "[[hooks]]", f'event = "{hook.event}"', f"command = {toml_string(hook.command)}"]
            if hook.matcher:
                lines.append(f"matcher = {toml_string(hook.matcher)}")
            if hook.timeout is not None:
                lines.append(f"timeout = {hook.timeout}")
        self.config.write_text("\n".join([*lines, tail, ""]))

    def register(self, command: str, *, detached: str | None = None, timeout: int | None = None) -> None:
        """Register one command for every event of this version, `detached` for those the vendor kills."""
        self.configure(
            Hook(event, detached if detached is not None and event in DETACHED else command, timeout=timeout)
            for event in self.events
        )

    def placeholder_login(self) -> None:
        """Store an OAuth credential that opens nothing: `kimi acp` 0.28.0 starts no session without one."""
        folder = self.code_home / "credentials"
        folder.mkdir(mode=0o700, exist_ok=True)
        token = {
            "access_token": "placeholder",
            "refresh_token": "placeholder",
            "expires_at": 4102444800,
            "scope": "",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
        (folder / "kimi-code.json").write_text(json.dumps(token))

    def run(
        self, arguments: Sequence[str], *, timeout_s: float = 60, env: Mapping[str, str] | None = None
    ) -> Printed:
        """Run the command line to its end. A run over `timeout_s` is killed with its group, and raises."""
        process = subprocess.Popen(
            [*self.argv, *arguments],
            cwd=self.project,
            env=self.env(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                kill_group(process)
                raise
        return Printed(process.returncode, stdout, stderr)

    def run_print(
        self,
        prompt: str,
        *,
        resume: str | None = None,
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
        more: Sequence[str] = (),
    ) -> Printed:
        """`kimi -p PROMPT`, optionally resuming a session."""
        session = ["--session", resume] if resume else []
        return self.run([*session, *more, "-p", prompt], timeout_s=timeout_s, env=env)
