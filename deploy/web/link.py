"""The link as a whole: every server of one home, one way to the service, one report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.web import health
from deploy.web.home import Address, TokenFile, servers
from deploy.web.outbox import Outbox
from deploy.web.watch import Watch

log = logging.getLogger(__name__)

JSON = dict[str, Any]

_LOOK_SECONDS = 1.0
_FINISH_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a link is told: Kimi Code's `home`, the `url` of the service and its `token`.

    `mode` None is the service's own. `server` is one server's address instead of those that the home names.
    `port` of the health answer, 0 for any free one, None for none.
    """

    home: Path
    url: str
    token: str | None = None
    mode: str | None = None
    server: Address | None = None
    port: int | None = health.PORT


class Link:
    """Watches every server of a home."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token = TokenFile(options.home)
        self._outbox = Outbox(options.url, options.token, options.mode, os.urandom(8).hex())
        self._watches: dict[Address, Watch] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._named: set[Address] = set()
        self.port: int | None = None

    async def run(self) -> None:
        """Watch until cancelled; what is on its way then is still delivered, for a moment."""
        server = await self._health()
        works = [
            asyncio.create_task(self._outbox.run()),
            asyncio.create_task(self._outbox.poll(self._do, self._live)),
        ]
        try:
            while True:
                self._named = await asyncio.to_thread(self._find)
                for address in self._named - self._tasks.keys():
                    self._begin(address)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for task in [*self._tasks.values(), *works]:
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *works, return_exceptions=True)
            await self._outbox.finish(_FINISH_SECONDS)
            if server is not None:
                server.close()

    def report(self) -> JSON:
        """What the health answer says."""
        watched: list[JSON] = [
            {"address": address.place, "sessions": len(watch.live), **asdict(watch.figures)}
            for address, watch in self._watches.items()
        ]
        problem = self._outbox.problem
        ill = [one for one in watched if one["state"] not in ("live", "new", "closing")]
        return {
            "ok": problem is None and not ill,
            "service": problem or "ok",
            "servers": watched,
            "frames": {
                "delivered": self._outbox.delivered,
                "waiting": self._outbox.waiting,
                "turned_away": self._outbox.turned_away,
                "skipped": self._outbox.skipped,
            },
        }

    async def _health(self) -> asyncio.Server | None:
        if self._options.port is None:
            return None
        try:
            server = await health.serve(self._options.port, self.report)
        except OSError as error:
            log.warning("no health on port %d: %s", self._options.port, error.strerror)
            return None
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _find(self) -> set[Address]:
        if self._options.server is not None:
            return {self._options.server}
        return set(servers(self._options.home))

    def _begin(self, address: Address) -> None:
        watch = Watch(address, self._token.read, self._outbox)
        self._watches[address] = watch
        task = asyncio.create_task(watch.run(lambda: address in self._named))
        self._tasks[address] = task
        task.add_done_callback(lambda done: self._ended(address, done))

    def _ended(self, address: Address, task: asyncio.Task[None]) -> None:
        self._watches.pop(address, None)
        self._tasks.pop(address, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: watching it failed", address.place, exc_info=error)

    def _live(self) -> list[str]:
        return [name for watch in self._watches.values() for name in watch.loaded]

    def _do(self, write: JSON) -> None:
        """Something that the service wants done at the server where the session lives."""
        session = write.get("session")
        for watch in self._watches.values():
            if isinstance(session, str) and session in watch.loaded:
                watch.write(write)
                return
        # Where the session is not loaded, the call would load it.
        self._outbox.tell({"link": "result", "id": write.get("id"), "session_id": session, "outcome": "away"})


async def run(options: Options) -> None:
    """Run a link until SIGINT or SIGTERM."""
    link = Link(options)
    task = asyncio.ensure_future(link.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
