"""A server that behaves as `kimi web` 2.1.0 does, or misbehaves as told, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from deploy.cli.serve import listen
from tests.web.frames import JSON, Journal

BUFFER = 1_000
TOKEN = "fake-server-token-0123456789"
SECRET = "/home/someone/private/path.ts:17"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Fake:
    """One server. `live` are the sessions that it has loaded; `calls` are the REST calls it got."""

    _numbers = itertools.count(1)

    def __init__(self, home: Path, *, heartbeat_ms: int | None = 10_000) -> None:
        self.home = home
        self.heartbeat_ms = heartbeat_ms
        self.journals: dict[str, Journal] = {}
        self.live: set[str] = set()
        self.turns: dict[str, int | None] = {}
        self.pending: dict[str, list[JSON]] = {}
        self.calls: list[str] = []
        self.bodies: list[JSON] = []
        self.sockets: dict[WebSocket, set[str]] = {}
        self.opened = 0
        self.refusals = 0
        self.pongs: list[Any] = []
        self.mute = False
        self.deaf = False
        self.closes = False
        self.on_decide: Any = None
        self.on_abort: Any = None
        self.port = 0
        self._file: Path | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, port: int = 0) -> None:
        app = Starlette(
            routes=[
                Route("/api/v1/healthz", self._health),
                Route("/api/v1/sessions", self._sessions),
                Route("/api/v1/sessions/{name}", self._session, methods=["GET", "POST"]),
                Route("/api/v1/sessions/{name}/snapshot", self._snapshot),
                Route("/api/v1/sessions/{name}/approvals/{id}", self._decide, methods=["POST"]),
                WebSocketRoute("/api/v1/ws", self._socket),
            ]
        )
        listener = listen("127.0.0.1", port)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            app, log_config=None, ws="websockets-sansio", lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self.token(TOKEN)
        instances = self.home / "server" / "instances"
        instances.mkdir(parents=True, exist_ok=True)
        self._file = instances / f"{next(self._numbers):026d}.json"
        said = {"server_id": self._file.stem, "pid": os.getpid(), "host": "127.0.0.1", "port": self.port}
        self._file.write_text(json.dumps(said))

    async def stop(self, *, file: bool = True) -> None:
        if file and self._file is not None:
            self._file.unlink(missing_ok=True)
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = None

    def token(self, token: str) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / "server.token"
        path.unlink(missing_ok=True)
        path.write_text(token)

    def close_port(self) -> None:
        """As after Ctrl+C: no new connections, the old ones go on."""
        assert self._server is not None
        for server in self._server.servers:
            server.close()

    async def hang_up(self) -> None:
        """End every connection."""
        for socket in list(self.sockets):
            with contextlib.suppress(RuntimeError):
                await socket.close(1011)

    def session(self, name: str, *, live: bool = True, **journal: Any) -> Journal:
        """A session on disk, loaded or not."""
        self.journals[name] = Journal(name, **journal)
        if live:
            self.live.add(name)
        return self.journals[name]

    async def send(self, journal: Journal, *frames: JSON) -> None:
        """Send frames of a session to its subscribers; all that it holds unless some are given."""
        for frame in frames or tuple(journal.frames):
            for socket, names in list(self.sockets.items()):
                if journal.session in names:
                    await self.raw(socket, json.dumps(frame))

    async def raw(self, socket: WebSocket, text: str | bytes) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await (socket.send_bytes(text) if isinstance(text, bytes) else socket.send_text(text))

    async def everybody(self, text: str | bytes) -> None:
        for socket in list(self.sockets):
            await self.raw(socket, text)

    async def _health(self, request: Request) -> Response:
        return _answer({})

    def _known(self, request: Request) -> bool:
        self.calls.append(f"{request.method} {request.url.path.removeprefix('/api/v1')}")
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return True
        self.refusals += 1
        return False

    async def _sessions(self, request: Request) -> Response:
        if not self._known(request):
            return _unauthorized()
        return _answer({"items": [self._item(name) for name in self.journals], "has_more": False})

    def _item(self, name: str) -> JSON:
        journal = self.journals[name]
        return {
            "id": name,
            "created_at": "2020-01-01T00:00:00.000Z" if journal.old else "2099-01-01T00:00:00.000Z",
            "updated_at": f"{journal.seq}",
            "busy": journal.turn_in_flight is not None,
        }

    async def _session(self, request: Request) -> Response:
        if not self._known(request):
            return _unauthorized()
        name = request.path_params["name"]
        if request.method == "GET":
            return _answer(self._item(name)) if name in self.journals else _error(40401)
        name = name.removesuffix(":abort")
        if self.on_abort is not None:
            await self.on_abort(name)
        return _answer({"aborted": True})

    async def _snapshot(self, request: Request) -> Response:
        if not self._known(request):
            return _unauthorized()
        name = request.path_params["name"]
        journal = self.journals[name]
        turn = self.turns.get(name, journal.turn_in_flight)
        return _answer(
            {
                "as_of_seq": journal.seq,
                "epoch": journal.epoch,
                "session": {"id": name},
                "messages": {"items": [{"content": SECRET}], "has_more": False},
                "in_flight_turn": None if turn is None else {"turn_id": turn, "assistant_text": SECRET},
                "pending_approvals": self.pending.get(name, journal.pending),
                "pending_questions": [],
            }
        )

    async def _decide(self, request: Request) -> Response:
        if not self._known(request):
            return _unauthorized()
        body = await request.json()
        self.bodies.append(body)
        if self.on_decide is None:
            return _error(40404)
        found: Response = await self.on_decide(request.path_params["name"], request.path_params["id"], body)
        return found

    async def _socket(self, socket: WebSocket) -> None:
        self.opened += 1
        if socket.headers.get("authorization") != f"Bearer {TOKEN}":
            self.refusals += 1
            await socket.send_denial_response(Response(status_code=401))
            return
        await socket.accept()
        if self.closes:
            await socket.close(1011)
            return
        self.sockets[socket] = set()
        try:
            if not self.mute:
                hello: JSON = {"ws_connection_id": "conn_1", "protocol_version": 2}
                if self.heartbeat_ms is not None:
                    hello["heartbeat_ms"] = self.heartbeat_ms
                await self.raw(socket, json.dumps({"type": "server_hello", "payload": hello}))
            while True:
                await self._answer(socket, json.loads(await socket.receive_text()))
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sockets.pop(socket, None)

    async def _answer(self, socket: WebSocket, frame: JSON) -> None:
        payload = frame.get("payload") or {}
        if frame["type"] == "pong":
            self.pongs.append(payload.get("nonce"))
        if frame["type"] != "subscribe" or self.deaf or self.mute:
            return
        accepted, missing, resync, cursors = [], [], [], {}
        for name in payload["session_ids"]:
            if name not in self.live:
                missing.append(name)
                continue
            accepted.append(name)
            self.sockets[socket].add(name)
            journal = self.journals[name]
            reason = self._replay(journal, (payload.get("cursors") or {}).get(name))
            if isinstance(reason, str):
                resync.append(name)
                told = {"session_id": name, "reason": reason, "current_seq": journal.seq}
                await self.raw(socket, json.dumps({"type": "resync_required", "payload": told}))
            else:
                for missed in reason:
                    await self.raw(socket, json.dumps(missed))
            cursors[name] = {"seq": journal.seq, "epoch": journal.epoch}
        ack = {"accepted": accepted, "not_found": missing, "resync_required": resync, "cursors": cursors}
        await self.raw(socket, json.dumps({"type": "ack", "id": frame.get("id"), "code": 0, "payload": ack}))

    def _replay(self, journal: Journal, cursor: JSON | None) -> list[JSON] | str:
        if cursor is None:
            return []
        if cursor.get("epoch", journal.epoch) != journal.epoch or cursor["seq"] > journal.seq:
            return "epoch_changed"
        if journal.seq - cursor["seq"] > BUFFER:
            return "buffer_overflow"
        return [frame for frame in journal.frames if frame["seq"] > cursor["seq"]]


def _answer(data: JSON, code: int = 0) -> Response:
    return JSONResponse({"code": code, "msg": "success", "data": data, "request_id": "1"})


def _error(code: int) -> Response:
    said = {"code": code, "msg": f"{SECRET} not found", "data": None, "stack": f"Error\n at {SECRET}"}
    return JSONResponse({**said, "request_id": "1"})


def _unauthorized() -> Response:
    return JSONResponse({"code": 40101, "msg": "Unauthorized", "data": None}, 401)


@contextlib.asynccontextmanager
async def faking(home: Path, **given: Any) -> AsyncIterator[Fake]:
    """A running fake."""
    fake = Fake(home, **given)
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
