"""uvicorn's WebSocket protocol, which also takes text frames that are ready made (`handlers.framing`)."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from handlers.framing import EXTENSION

_NEEDED = ("close_sent", "disconnected", "writable")


class FramedProtocol(WebSocketsSansIOProtocol):
    """Offers the extension where frames go out as they are: nothing was negotiated that would change them."""

    async def run_asgi(self) -> None:
        if not self.conn.extensions and all(hasattr(self, name) for name in _NEEDED):
            self.scope["extensions"][EXTENSION] = {}
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        frames = message.get("frames")
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(frames)
