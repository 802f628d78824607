"""`kimi acp` as a test drives it: JSON-RPC by hand over stdio, every line kept as bytes in both directions.

Written by hand, so that a test can send what no client library would and compare bytes.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .kimi import Kimi, kill_group
from .waiting import until

JSON = dict[str, Any]
Answerer = Callable[[JSON], JSON]


def choose(option: str) -> Answerer:
    """Answers `session/request_permission` with one option id."""
    return lambda _params: {"outcome": {"outcome": "selected", "optionId": option}}


def cancelled(_params: JSON) -> JSON:
    """Answers `session/request_permission` with a cancellation."""
    return {"outcome": {"outcome": "cancelled"}}


class RpcError(Exception):
    """The agent answered a request with a JSON-RPC error."""

    def __init__(self, error: JSON) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = int(error.get("code", 0))


class Acp:
    """A client of one ACP agent process. `argv` may be the agent itself or a wrapper around it (our tee).

    `permission` answers the agent's permission requests and may be replaced at any time."""

    def __init__(self, kimi: Kimi, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None):
        self.kimi = kimi
        kimi.placeholder_login()
        self.permission: Answerer = choose("approve_once")
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.messages: list[JSON] = []
        self._answers: dict[int, JSON] = {}
        self._next = 0
        self._closed = False
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._stderr = (kimi.base / "acp.log").open("ab")
        self._process = subprocess.Popen(
            list(argv or [*kimi.argv, "acp"]),
            cwd=kimi.project,
            env=kimi.env(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Acp:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, timeout_s: float = 10) -> int:
        """Close stdin, as an editor does; the exit code (negative: it had to be killed)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        kill_group(self._process)
        self._thread.join(5)
        self._process.stdout.close()
        self._stderr.close()
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.received.append(line)
            with suppress(ValueError):
                self._take(json.loads(line))
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, message: JSON) -> None:
        with self._changed:
            self.messages.append(message)
            if "method" not in message and isinstance(message.get("id"), int):
                self._answers[message["id"]] = message
            self._changed.notify_all()
        if "method" in message and "id" in message:
            if message["method"] == "session/request_permission":
                answer: JSON = {"result": self.permission(message["params"])}
            else:
                answer = {"error": {"code": -32601, "message": "not offered by this client"}}
            self.send({"jsonrpc": "2.0", "id": message["id"], **answer})

    def send(self, message: JSON) -> None:
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, line: bytes) -> None:
        """Write bytes as they are."""
        assert self._process.stdin is not None
        with self._writing:
            self.sent.append(line)
            with suppress(OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def notify(self, method: str, params: JSON) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method: str, params: JSON) -> int:
        """Send a request, its id; the answer is fetched with `answer`."""
        with self._writing:
            self._next += 1
            id = self._next
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return id

    def answer(self, id: int, timeout_s: float = 30) -> Any:
        """The result of a request that was started; `RpcError` for an error."""
        with self._changed:
            got = self._changed.wait_for(lambda: id in self._answers or self._closed, timeout_s)
            assert got, f"no answer to request {id} in {timeout_s} s"
            assert id in self._answers, "the agent ended before it answered"
            message = self._answers[id]
        if "error" in message:
            raise RpcError(message["error"])
        return message["result"]

    def request(self, method: str, params: JSON, timeout_s: float = 30) -> Any:
        return self.answer(self.start(method, params), timeout_s)

    def initialize(self) -> JSON:
        result: JSON = self.request(
            "initialize",
            {
                "protocolVersion": 1,
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                },
                "clientInfo": {"name": "tests", "version": "1"},
            },
        )
        return result

    def new_session(self) -> str:
        params = {"cwd": str(self.kimi.project), "mcpServers": []}
        return str(self.request("session/new", params)["sessionId"])

    def prompt(self, session: str, text: str, timeout_s: float = 60) -> str:
        """Run one prompt to its end; the stop reason."""
        return str(self.answer(self.start_prompt(session, text), timeout_s)["stopReason"])

    def start_prompt(self, session: str, text: str) -> int:
        return self.start(
            "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        )

    def updates(self, kind: str | None = None) -> list[JSON]:
        """The `update` objects received so far, all or of one kind."""
        with self._changed:
            found = [m["params"]["update"] for m in self.messages if m.get("method") == "session/update"]
        return [u for u in found if kind is None or u["sessionUpdate"] == kind]

    def asked(self, method: str) -> list[JSON]:
        """The params of the agent's own requests of one method."""
        with self._changed:
            return [m["params"] for m in self.messages if m.get("method") == method and "id" in m]

    def wait(self, check: Callable[[], object], what: str, timeout_s: float = 20) -> None:
        """Wait until `check` holds."""
        until(lambda: bool(check()), what, timeout_s)
