"""`/socket`: the duplex binding (AEP-0003 §3.5, §4, §4.1, §6.5)."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from handlers.connection import Connection
from handlers.errors import Refused
from handlers.framing import EXTENSION
from handlers.responses import refusal
from handlers.service import Service
from handlers.tokens import Principal, Right


async def socket(websocket: WebSocket) -> None:
    """Hold one connection from its handshake to its end."""
    service: Service = websocket.app.state.service
    scope, receive, send = websocket.scope, websocket.receive, websocket.send
    assert (await receive())["type"] == "websocket.connect"
    try:
        principal = admit(service, scope)
        if service.draining:
            raise Refused(503, "shutting-down", "this process is stopping; another one will answer")
    except Refused as error:
        service.audit.refused(scope, error)
        await refuse(scope, receive, send, error)
        return
    await send({"type": "websocket.accept"})
    framing = EXTENSION in scope.get("extensions", {})
    await Connection(service, principal, receive, send, framing=framing).run()


def admit(service: Service, scope: Scope) -> Principal:
    """Whoever may watch or emit; the role is known with the hello only."""
    try:
        return service.gate.admit(scope, Right.WATCH, query=True)
    except Refused as error:
        if error.code != "forbidden":
            raise
        return service.gate.admit(scope, Right.EMIT, query=True)


async def refuse(scope: Scope, receive: Receive, send: Send, error: Refused) -> None:
    """An answer in HTTP where the server can give one, else the bare refusal of the handshake."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return
    answer = refusal(error)
    await send(
        {"type": "websocket.http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
    )
    await send({"type": "websocket.http.response.body", "body": answer.body})
