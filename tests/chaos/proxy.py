"""A round-robin TCP proxy: each connection goes to the next replica that takes it."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit


class Proxy:
    """`url` is the one address that clients know; `backends` may be changed at any time."""

    def __init__(self) -> None:
        self.backends: list[str] = []
        self.url = ""
        self._next = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            upstream = await self._connect()
            if upstream is None:
                return
            there, back = upstream
            try:
                both = (asyncio.create_task(_pump(reader, back)), asyncio.create_task(_pump(there, writer)))
                _, rest = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for pump in rest:
                    pump.cancel()
                await asyncio.gather(*both, return_exceptions=True)
            finally:
                back.close()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self.backends)):
            self._next += 1
            parts = urlsplit(self.backends[self._next % len(self.backends)])
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(parts.hostname, parts.port)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
