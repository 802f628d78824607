"""The relay link: owner by lease, connected while it owns, gone when its lease is late."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time

from deploy.relay.drain import Chunk, Drain
from deploy.relay.groups import task_group
from deploy.relay.posts import Posts
from deploy.relay.sockets import Sockets
from deploy.relay.standing import Standing
from deploy.relay.transport import Address, LeaseLate, RelayError, Timing, Transport, Unwelcome
from deploy.relay.uplink import Identity
from handlers.aep.frames import refusal
from handlers.aep.levels import JSONObject
from handlers.claims import process_name
from handlers.errors import FrameRefused, InvalidEvent
from handlers.ingest import is_command
from handlers.service import Service
from handlers.tokens import ALL_RIGHTS, Principal
from state.errors import LeaseLost, StateError
from state.keys import SessionKey
from state.leases import Lease, Leases

log = logging.getLogger("aep-kimi relay")


class Link:
    """Sends the sessions of one service to one relay, whenever this process is the one to do so.

    `service` gives its connections and settings; it need not be started.
    """

    def __init__(
        self, service: Service, address: Address, token: str | None, *, timing: Timing | None = None
    ) -> None:
        self.bound = False
        self._service = service
        self._address = address
        self._token = token
        self._timing = timing or Timing()
        self._leases = Leases(service.client, service.keys, process_name())
        # Another relay is another job, with cursors of its own.
        self._name = "relay:" + hashlib.sha256(address.endpoint.encode()).hexdigest()[:12]
        self._standing = Standing(service.sessions, service.replay, service.keys, service.clock)
        self._chunk = Chunk()
        self._pause = self._timing.first_pause
        self._told = ""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> asyncio.Task[None]:
        """`run` in a task of its own, which ends before `stop` only by a defect, told in the log."""
        self._task = asyncio.create_task(self.run())
        self._task.add_done_callback(_report)
        return self._task

    async def stop(self) -> None:
        """End that task: part from the relay in order and give the lease back."""
        self._stopping = True
        if self._task is not None:
            # A task group that fails at the very moment swallows the cancellation (Python 3.11).
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Be the link, or wait to become it, until cancelled."""
        if self._address.exposed and self._token:
            log.warning("%s: the token travels in the clear; use wss or https", self._address.shown)
        while not self._stopping:
            try:
                lease = await self._leases.acquire(self._name, self._timing.lease_ms)
            except StateError as error:
                self._say(f"Redis does not answer: {error}")
                lease = None
            if lease is None:
                await asyncio.sleep(self._timing.poll * random.uniform(0.5, 1.0))
                continue
            if await self._hold(lease, once=False):
                self._pause = self._timing.first_pause
            if self._stopping:
                return
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, self._timing.longest_pause)

    async def once(self, seconds: float) -> bool:
        """Send what the feed holds now, and stop; whether all of it went out within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                lease = await self._leases.acquire(self._name, self._timing.lease_ms)
                while lease is None:
                    await asyncio.sleep(self._timing.poll * random.uniform(0.5, 1.0))
                    lease = await self._leases.acquire(self._name, self._timing.lease_ms)
                return await self._hold(lease, once=True)
        except (TimeoutError, StateError) as error:
            log.warning("%s: %s", self._address.shown, str(error) or f"not done within {seconds:g} s")
            return False

    async def _hold(self, lease: Lease, *, once: bool) -> bool:
        """Be connected under this lease until something ends it; whether that went well for a while."""
        transport = self._transport(lease)
        since: float | None = None
        reason = "stopping"
        try:
            async with task_group() as group:
                keeper = group.create_task(self._keep(lease))
                await transport.open()
                since = time.monotonic()
                watching = group.create_task(transport.watch())
                telling = group.create_task(self._tell(transport))
                await self._drain(lease, transport).run(once=once)
                for task in (keeper, watching, telling):
                    task.cancel()
            return True
        except BaseExceptionGroup as errors:
            reason = self._why(errors)
        finally:
            self.bound = False
            late = lease.left() <= self._timing.margin
            if not late:
                with contextlib.suppress(Exception):
                    await transport.close(reason)
            transport.abort()
            with contextlib.suppress(StateError):
                if since is not None:
                    await self._service.bound.clear()
                if not late:
                    await self._leases.release(lease)
        return since is not None and time.monotonic() - since >= self._timing.steady

    def _transport(self, lease: Lease) -> Transport:
        service, timing = self._service, self._timing

        def guard() -> None:
            if lease.left() <= timing.margin:
                raise LeaseLate("the lease ran out before it could be renewed")

        if self._address.posting:
            return Posts(self._address, self._token, guard, service.counters, timing)
        return Sockets(
            self._address,
            self._token,
            service.settings.emitter,
            self._declaration,
            self._command,
            guard,
            service.counters,
            timing,
        )

    def _drain(self, lease: Lease, transport: Transport) -> Drain:
        service = self._service
        return Drain(
            service.client,
            service.keys,
            service.sessions,
            service.replay,
            self._standing,
            self._leases,
            lease,
            transport,
            service.counters,
            self._chunk,
        )

    async def _keep(self, lease: Lease) -> None:
        """Renew the lease in time; raises when that fails, which ends everything."""
        timing = self._timing
        wait = timing.renew
        while True:
            await asyncio.sleep(min(wait, max(0.0, lease.left() - timing.margin)))
            try:
                await self._leases.renew(lease)
                wait = timing.renew
            except LeaseLost as error:
                raise LeaseLate(str(error)) from None
            except StateError:
                wait = min(0.25, timing.renew)
            if lease.left() <= timing.margin:
                raise LeaseLate("the lease could not be renewed in time")

    async def _tell(self, transport: Transport) -> None:
        """Say that the link is bound while the relay shows that it reads."""
        timing = self._timing
        while True:
            self.bound = time.monotonic() - transport.heard < timing.idle + timing.confirm
            with contextlib.suppress(StateError):
                if self.bound:
                    self._say(f"linked to {self._address.shown}", level=logging.INFO)
                    await self._service.bound.say(timing.beat_ttl_ms)
                else:
                    await self._service.bound.clear()
            await asyncio.sleep(timing.beat)

    def _declaration(self, agent: str) -> JSONObject:
        """What the sessions of an agent take; nothing where nobody is authenticated (AEP-0004 §4.1)."""
        declared = self._service.router.declaration(agent)
        return declared if self._token else declared | {"accepts": []}

    async def _command(self, identity: Identity, frame: JSONObject, body: bytes) -> JSONObject | None:
        service = self._service
        if not is_command(str(frame.get("type"))):
            return None
        try:
            command = service.ingest.check(frame, body)
        except InvalidEvent as error:
            service.counters.add("relay.commands.invalid")
            log.warning("the relay routed a command that is none: %s", error)
            return None
        service.counters.add("relay.commands")
        principal = Principal(identity.emitter, ALL_RIGHTS, authenticated=self._token is not None)
        key = SessionKey(identity.emitter, command.session or "", identity.agent)
        try:
            await service.router.take(principal, key, command)
        except FrameRefused as refused:
            return refusal(refused)
        return None

    def _why(self, errors: BaseExceptionGroup[BaseException]) -> str:
        """Tell why the connection ended; what is not of its kind is raised on."""
        unknown = errors.split((RelayError, StateError))[1]
        self._service.counters.add("relay.lost")
        if isinstance(unknown, ExceptionGroup):
            # A defect of ours must not end the link for good.
            log.error("the link failed", exc_info=unknown)
            self._pause = self._timing.longest_pause
            return "failed"
        if unknown is not None:
            raise unknown
        first = _first(errors)
        if isinstance(first, Unwelcome):
            self._pause = max(self._pause, min(self._timing.unwelcome, self._timing.longest_pause))
        where = "" if isinstance(first, LeaseLate | StateError) else f"{self._address.shown}: "
        self._say(f"not linked: {where}{first}")
        return "lease-lost" if isinstance(first, LeaseLate) else "lost"

    def _say(self, text: str, level: int = logging.WARNING) -> None:
        if text != self._told:
            self._told = text
            log.log(level, "%s", text)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the link has failed for good", exc_info=task.exception())


def _first(errors: BaseException) -> BaseException:
    """What happened first, but that a lease is late says more than what it brought about."""
    found: list[BaseException] = []

    def walk(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                walk(inner)
        else:
            found.append(error)

    walk(errors)
    return next((error for error in found if isinstance(error, LeaseLate)), found[0])
