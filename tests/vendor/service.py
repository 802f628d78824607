"""The real service as a process: `aep-kimi serve` on a free port, against a real Redis where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aep_sdk.projection import StateProjection

from deploy.setup import blocks

from .kimi import Hook, Kimi, kill_group
from .waiting import NotReady, free_port, until

Event = dict[str, Any]
READY = re.compile(r"ready on (http://\S+)")
ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "deploy" / "shim" / "kimi_hook.py"
CLI = "from deploy.cli.main import main; raise SystemExit(main())"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def register(kimi: Kimi, url: str, *, token_file: str = "", control: bool = False) -> None:
    """Register our shim for every event this version knows, with the commands that setup writes.

    A detached one ignores SIGTERM from the shell on: the vendor's kill often comes while the interpreter is
    still loading (measured with 2.1.0 on two busy cores: 31 of 40 delivered without it, 40 of 40 with it).
    """
    registration = blocks.Registration(
        sys.executable,
        str(SHIM),
        url,
        token_file=token_file,
        control=control,
        events=kimi.events,
        setsid=shutil.which("setsid", path="/usr/bin:/bin") or "",
    )
    kimi.configure(Hook(h.event, h.command, timeout=h.timeout) for h in blocks.hooks(registration))


class Redis:
    """A real Redis (or Valkey) of the tests' own on a loopback port; None stands for none installed."""

    def __init__(self, base: Path, binary: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._log = (base / "redis.log").open("ab")
        words = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*words, "--dir", str(base)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @classmethod
    def start(cls, base: Path) -> Redis | None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        return cls(base, binary) if binary else None

    def stop(self) -> None:
        kill_group(self._process)
        self._log.close()


class Service:
    """One `aep-kimi serve`. Without Redis on this machine it runs with the server it brings itself.

    `env` are variables of the service (`AEP_CAPTURE`, `AEP_KIMI_CONTROL`…). `redis` may be shared: what is
    given is not stopped here."""

    def __init__(self, base: Path, env: Mapping[str, str] | None = None, redis: Redis | None = None) -> None:
        self.base = base
        base.mkdir(parents=True, exist_ok=True)
        self._env = dict(env or {})
        self._own_redis = Redis.start(base) if redis is None else None
        self._redis = redis or self._own_redis
        self._process: subprocess.Popen[str] | None = None
        self._output: list[str] = []
        self._reader: threading.Thread | None = None
        self.url = ""

    def __enter__(self) -> Service:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._own_redis is not None:
            self._own_redis.stop()

    @property
    def hook_url(self) -> str:
        return f"{self.url}/hook"

    @property
    def token(self) -> str | None:
        return self._env.get("AEP_TOKEN")

    @property
    def output(self) -> str:
        """What the process said so far."""
        return "".join(self._output)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait for the line that says it is ready."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith("AEP_")}
        env = {**keep, "AEP_DATA_DIR": str(self.base / "data"), "AEP_EMITTER": "tests", **self._env}
        if self._redis is not None:
            env["AEP_REDIS_URL"] = self._redis.url
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLI, "serve", "--port", self.url.rpartition(":")[2] or "0"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        try:
            self.url = until(self._address, "serve is not ready")
            until(lambda: self._get("/readyz", None) is not None, "serve has no Redis")
        except NotReady as error:
            raise NotReady(f"{error}: {self.output}") from None

    def _address(self) -> str | None:
        assert self._process is not None
        found = READY.search(self.output)
        if found is None and self._process.poll() is not None:
            raise NotReady(f"serve ended with {self._process.returncode}")
        return found[1] if found else None

    def _drain(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)

    def kill(self) -> None:
        """SIGKILL: a crash. What it stored stays in Redis; `start` brings it back on the same port."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self.stop()

    def stop(self) -> None:
        """SIGTERM, then what it takes."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_group(process, grace_s=8)
        if self._reader is not None:
            self._reader.join(5)
        assert process.stdout is not None
        process.stdout.close()
        self._output.clear()

    def _get(self, path: str, token: str | None) -> bytes | None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with OPENER.open(request, timeout=10) as got:
                body: bytes = got.read()
                return body
        except OSError:
            return None

    def cli(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `aep-kimi` as the owner of this service does."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith("AEP_")}
        token = self._env.get("AEP_TOKEN")
        return subprocess.run(
            [sys.executable, "-c", CLI, *arguments],
            env={**keep, "AEP_URL": self.url, **({"AEP_TOKEN": token} if token else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def events(self, session: str | None = None) -> list[Event]:
        """Everything in the replay, of one session or all, in stream order."""
        wanted = {"session": session} if session else {}
        path = f"/stream?live=0&from=all&filter={quote(json.dumps(wanted))}"
        body = self._get(path, self._env.get("AEP_TOKEN"))
        assert body is not None, f"no stream: {self.output}"
        found = []
        for block in body.decode().split("\n\n"):
            lines = [line[5:].strip() for line in block.split("\n") if line.startswith("data:")]
            if lines:
                value = json.loads("\n".join(lines))
                if isinstance(value, dict) and "aep" in value:
                    found.append(value)
        return found

    def wait(
        self, session: str, check: Callable[[list[Event]], object], timeout_s: float = 30
    ) -> list[Event]:
        """Wait until the events of a session satisfy `check`; the events."""

        def look() -> list[Event] | None:
            events = self.events(session)
            return events if check(events) else None

        try:
            return until(look, session, timeout_s, 0.1)
        except NotReady:
            raise NotReady(f"events of {session}: {types(self.events(session))}") from None


def types(events: list[Event]) -> list[str]:
    return [str(event["type"]) for event in events]


def core(events: list[Event]) -> list[str]:
    """The types that AEP defines, without the vendor's own."""
    return [kind for kind in types(events) if not kind.startswith("x.")]


def violations(events: list[Event]) -> list[Event]:
    """What the official SDK's projection has to say against a stream."""
    projection = StateProjection()
    for event in events:
        projection.apply(event)
    found: list[Event] = projection.state()["violations"]
    return found
