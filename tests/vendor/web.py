"""`kimi web` as a test drives it: the server process, its REST API as the web UI uses it, its WebSocket.

Shapes as `kimi-code 0.28.0` and `2.1.0` have them (docs/en/reference/server-api.md of the vendor).
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from .kimi import Kimi, kill_group
from .waiting import free_port, until

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One REST answer: HTTP status and the vendor's envelope (`code` 0 is success)."""

    status: int
    code: int
    msg: str
    data: Any


class Web:
    """One `kimi web` on loopback. Use as a context manager; `restart` and `kill` are for fault tests."""

    def __init__(self, kimi: Kimi, *, port: int | None = None) -> None:
        self.kimi = kimi
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Web:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.kimi.code_home / "server.token").read_text().strip()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def instances(self) -> list[Path]:
        """The registry files of the servers of this home."""
        return sorted((self.kimi.code_home / "server" / "instances").glob("*.json"))

    def start(self) -> None:
        """Start and wait until the port answers."""
        assert self._process is None
        self._log = (self.kimi.base / "web.log").open("ab")
        self._process = subprocess.Popen(
            [*self.kimi.argv, "web", "--port", str(self.port), "--no-open"],
            cwd=self.kimi.project,
            env=self.kimi.env(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until(self._healthy, "kimi web does not answer: " + str(self.kimi.base / "web.log"), 40)
        except BaseException:
            self.kill()
            raise

    def _healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(f"kimi web ended with {self._process.returncode}")
        try:
            return self.request("GET", "/healthz").status == 200
        except OSError:
            return False

    def stop(self) -> int | None:
        """Ctrl+C, then what it takes. The exit code of the server, None if it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = None
        for _ in range(2):  # a second one ends a server whose port is held open by a websocket
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(5)
                break
        kill_group(process)
        self._close_log()
        return code

    def kill(self) -> None:
        """SIGKILL to the server and its group: a crash."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(10)
            kill_group(process)
        self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def request(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Answer:
        """One call of `/api/v1` + path. Raises OSError when the server is not there."""
        headers = {"Content-Type": "application/json"}
        if path != "/healthz":
            headers["Authorization"] = f"Bearer {self.token if token is None else token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                request, timeout=60
            ) as got:
                status, raw = got.status, got.read()
        except urllib.error.HTTPError as error:
            with error:
                status, raw = error.code, error.read()
        value = json.loads(raw or b"{}")
        return Answer(status, value.get("code", 0), value.get("msg", ""), value.get("data"))

    def call(self, method: str, path: str, body: object = None) -> Any:
        """As `request`, but the data of a success; an AssertionError tells what the vendor said."""
        answer = self.request(method, path, body)
        assert answer.code == 0, f"{method} {path}: {answer.code} {answer.msg}"
        return answer.data

    def create(self, *, title: str = "", cwd: Path | None = None) -> str:
        """A new session, its id."""
        body: JSON = {"metadata": {"cwd": str(cwd or self.kimi.project)}}
        if title:
            body["title"] = title
        return str(self.call("POST", "/sessions", body)["id"])

    def open(self, session: str) -> Frames:
        """Open a session as the web UI does: load it, then subscribe. Close what is returned."""
        self.call("GET", f"/sessions/{session}/snapshot")
        return Frames(self, [session])

    def prompt(self, session: str, text: str, *, permission_mode: str | None = None) -> str:
        """Submit a prompt as the web UI does, its id."""
        body: JSON = {"content": [{"type": "text", "text": text}], "model": "mock/m1"}
        if permission_mode is not None:
            body["permission_mode"] = permission_mode
        return str(self.call("POST", f"/sessions/{session}/prompts", body)["prompt_id"])

    def session(self, session: str) -> JSON:
        """The session object; reading it loads nothing."""
        value: JSON = self.call("GET", f"/sessions/{session}")
        return value

    def idle(self, session: str, timeout_s: float = 30) -> None:
        """Wait until no prompt is active or queued."""

        def check() -> bool:
            prompts = self.call("GET", f"/sessions/{session}/prompts")
            return not prompts.get("active") and not prompts.get("queued")

        until(check, f"{session} is still busy", timeout_s)

    def pending(self, session: str, kind: str = "approvals", timeout_s: float = 20) -> list[JSON]:
        """Wait for pending `approvals` or `questions` and list them."""

        def check() -> list[JSON]:
            items: list[JSON] = self.call("GET", f"/sessions/{session}/{kind}?status=pending")["items"]
            return items

        return until(check, f"no pending {kind}", timeout_s)

    def approve(
        self, session: str, approval: str, decision: str = "approved", *, feedback: str | None = None
    ) -> Answer:
        """Resolve an approval with the web UI's own call; `decision` approved, rejected or cancelled."""
        body = {"decision": decision} | ({} if feedback is None else {"feedback": feedback})
        return self.request("POST", f"/sessions/{session}/approvals/{quote(approval, safe='')}", body)

    def choose(self, session: str, question: str, answers: Mapping[str, JSON]) -> Answer:
        """Answer a question; `answers` from question id (`q_0`) to the vendor's answer object."""
        path = f"/sessions/{session}/questions/{quote(question, safe='')}"
        return self.request("POST", path, {"answers": dict(answers), "method": "click"})

    def journalled(self, session: str, kind: str) -> bool:
        """Whether the server's journal on disk has a frame type: it lags what is sent by up to a second.

        A server that is killed before gives the numbers of the lost frames to others, in the same epoch
        (seen with 0.28.0 and 2.1.0)."""
        path = self.kimi.code_home / "server" / "events" / f"{session}.jsonl"
        return path.exists() and f'"{kind}"' in path.read_text()

    def abort(self, session: str) -> Answer:
        return self.request("POST", f"/sessions/{session}:abort", {})

    def archive(self, session: str) -> Answer:
        return self.request("POST", f"/sessions/{session}:archive", {})


class Frames:
    """A WebSocket client of our own beside the link under test: keeps every frame, answers the heartbeat."""

    def __init__(self, web: Web, sessions: Sequence[str] = ()) -> None:
        self._open = ExitStack()
        opening = connect(
            f"ws://127.0.0.1:{web.port}/api/v1/ws",
            additional_headers={"Authorization": f"Bearer {web.token}"},
            max_size=None,
            proxy=None,
            ping_interval=None,
        )
        self._socket = self._open.enter_context(opening)
        self._frames: list[JSON] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        try:
            self.wait("server_hello")
            if sessions:
                self.subscribe(*sessions)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._thread.join(5)

    def _read(self) -> None:
        with suppress(ConnectionClosed):
            for raw in self._socket:
                frame = json.loads(raw)
                if frame.get("type") == "ping":
                    self.send("pong", frame.get("payload") or {})
                with self._changed:
                    self._frames.append(frame)
                    self._changed.notify_all()

    def send(self, kind: str, payload: JSON, id: str | None = None) -> None:
        frame: JSON = {"type": kind, "payload": payload}
        if id is not None:
            frame["id"] = id
        self._socket.send(json.dumps(frame))

    def subscribe(self, *sessions: str) -> None:
        """Subscribe and wait for the acknowledgement."""
        id = f"s{len(self.frames)}"
        self.send("subscribe", {"session_ids": list(sessions)}, id)
        with self._changed:
            acked = self._changed.wait_for(lambda: id in [f.get("id") for f in self._frames], 10)
        assert acked, "no ack of a subscription"

    @property
    def frames(self) -> list[JSON]:
        with self._changed:
            return list(self._frames)

    def of(self, kind: str) -> list[JSON]:
        """The payloads of one frame type, oldest first."""
        return [f["payload"] for f in self.frames if f.get("type") == kind]

    def wait(self, kind: str, count: int = 1, timeout_s: float = 20) -> JSON:
        """Wait for the `count`th frame of a type; its payload."""

        def enough() -> bool:
            return len([f for f in self._frames if f.get("type") == kind]) >= count

        with self._changed:
            assert self._changed.wait_for(enough, timeout_s), f"no {kind} frame in {timeout_s} s"
        return self.of(kind)[count - 1]
