"""One server of Kimi Code: connect, subscribe, keep the order, notice what goes wrong, let go in time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from deploy.web.errors import Closing, LinkError, Lost, RestError, ServiceAway, Strange, Unauthorized
from deploy.web.home import Address
from deploy.web.outbox import Outbox
from deploy.web.rest import Rest
from deploy.web.sequence import Sequence

log = logging.getLogger(__name__)

JSON = dict[str, Any]

GLOBAL = "__global__"
FRAME_LIMIT = 128 * 1024 * 1024
"""Bytes of one frame; a larger one ends the connection, and a snapshot takes its place."""

GONE = frozenset({40902, 40404, 40401, 40402})
"""What the vendor answers about something that is no longer there to be decided (kimi-code 2.1.0)."""

_HELLO_SECONDS = 10.0
_ACK_SECONDS = 20.0
_SILENCE_SECONDS = 15.0
_PROBE_SECONDS = 10.0
_PORT_SECONDS = 1.0
_LIST_SECONDS = 2.0
_LIST_SECONDS_TOLD = 10.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0
_SOUND_SECONDS = 30.0
_YOUNG_SECONDS = 24 * 3_600.0
_PATIENCE = 3
_WRITE_SECONDS = 6.0
_MOST_KNOWN = 2_000


@dataclass(slots=True)
class Figures:
    """What can be told of one server."""

    state: str = "new"
    frames: int = 0
    garbage: int = 0
    gaps: int = 0
    resyncs: int = 0
    connections: int = 0


@dataclass(slots=True)
class _Known:
    """A session as this connection knows it."""

    sequence: Sequence = field(default_factory=Sequence)
    live: bool = False
    tries: int = 0
    stuck_at: int | None = None
    deciding: set[str] = field(default_factory=set)
    """Approvals that we are about to resolve: what the server says of them waits for its answer to us."""
    held: list[tuple[str, bytes]] = field(default_factory=list)


class Watch:
    """Watches one server until it is gone for good or `stop` is called."""

    def __init__(self, address: Address, token: Callable[[], str | None], outbox: Outbox) -> None:
        self.address = address
        self.figures = Figures()
        self._token = token
        self._outbox = outbox
        self._rest = Rest(address, token)
        self._socket: ClientConnection | None = None
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, str] = {}
        self._acks: dict[str, asyncio.Future[JSON]] = {}
        self._numbers = itertools.count(1)
        self._heard = 0.0
        self._wanted: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._resync: dict[str, str] = {}
        self._oversized: set[str] = set()
        self._tells = False
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> list[str]:
        """The sessions whose frames flow."""
        return [name for name, known in self._known.items() if known.live]

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Connect, and connect again, as long as the address is `wanted`."""
        pause = _FIRST_PAUSE
        try:
            while wanted():
                began = time.monotonic()
                least = 0.0
                try:
                    await self._connected()
                except LinkError as error:
                    least = error.pause
                    self._say(_STATES.get(type(error), "lost"))
                finally:
                    self._forget()
                if time.monotonic() - began > _SOUND_SECONDS:
                    pause = _FIRST_PAUSE
                await self._rest_for(max(least, pause * random.uniform(0.7, 1.3)), wanted)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            for task in self._writes:
                task.cancel()
            await self._rest.close()

    async def _rest_for(self, seconds: float, wanted: Callable[[], bool]) -> None:
        """Stay away, unless another token appears or nobody wants us to come back."""
        until = time.monotonic() + seconds
        token = self._token()
        while (left := until - time.monotonic()) > 0:
            if not wanted() or self._token() != token:
                return
            await asyncio.sleep(min(0.25, left))

    async def _connected(self) -> None:
        """One connection, from the first look to its end."""
        try:
            await self._rest.recognise()
        except RestError:
            raise Lost from None
        token = self._token()
        if token is None:
            raise Unauthorized
        self.figures.connections += 1
        try:
            async with connect(
                self.address.stream,
                additional_headers={"Authorization": f"Bearer {token}"},
                user_agent_header="aep-kimi-web",
                proxy=None,
                compression=None,
                max_size=FRAME_LIMIT,
                ping_interval=None,
                open_timeout=_HELLO_SECONDS,
                close_timeout=1,
            ) as socket:
                self._socket = socket
                await self._together()
        except InvalidStatus as error:
            if error.response.status_code in (401, 403, 429):
                raise Unauthorized from None
            raise Strange from None
        except InvalidHandshake:
            raise Strange from None
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._oversized |= self._known.keys()
            raise Lost from None
        except (WebSocketException, OSError, TimeoutError):
            raise Lost from None

    async def _together(self) -> None:
        """All that goes on while connected; the first to fail ends it."""
        hello = asyncio.get_running_loop().create_future()
        self._acks["hello"] = hello
        works = [self._read(), self._converse(hello), self._look(), self._probe()]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _read(self) -> None:
        assert self._socket is not None
        self._heard = time.monotonic()
        async for raw in self._socket:
            self._heard = time.monotonic()
            await self._outbox.room()
            data = raw.encode() if isinstance(raw, str) else bytes(raw)
            try:
                frame = orjson.loads(data)
            except orjson.JSONDecodeError:
                frame = None
            kind = frame.get("type") if isinstance(frame, dict) else None
            if not isinstance(kind, str):
                self.figures.garbage += 1
                continue
            await self._take(kind, frame, data)
        raise Lost

    async def _take(self, kind: str, frame: JSON, raw: bytes) -> None:
        payload = frame.get("payload")
        body = payload if isinstance(payload, dict) else {}
        if kind == "ping":
            await self._send("pong", {"nonce": body.get("nonce")})
        elif kind == "server_hello":
            self._settle("hello", body)
        elif kind == "ack":
            self._settle(str(frame.get("id")), body)
        elif kind == "resync_required":
            name, reason = body.get("session_id"), body.get("reason")
            if isinstance(name, str) and name in self._known:
                self._resync[name] = reason if isinstance(reason, str) else "resync_required"
                if not self._known[name].sequence.waiting:
                    self._want(name)
        elif frame.get("volatile"):
            return
        else:
            self._sort(kind, frame, body, raw)

    def _sort(self, kind: str, frame: JSON, body: JSON, raw: bytes) -> None:
        """A durable frame finds its session."""
        name, seq, epoch = frame.get("session_id"), frame.get("seq"), frame.get("epoch")
        if not isinstance(name, str) or not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
            self.figures.garbage += 1
            return
        if name == GLOBAL:
            about = body.get("sessionId")
            self._pass(about if isinstance(about, str) else GLOBAL, raw)
            if kind == "event.session.archived" and isinstance(about, str):
                self._known.pop(about, None)
            return
        known = self._known.get(name)
        if known is None:
            # Some frames come without a subscription; the rest of them comes with it.
            self._tells = True
            self._want(name)
            return
        for ready in known.sequence.take(epoch if isinstance(epoch, str) else None, seq, raw):
            self._forward(name, known, ready)
        if known.sequence.broken and known.live:
            self.figures.gaps += 1
            known.live = False
            self._want(name)

    def _forward(self, name: str, known: _Known, raw: bytes) -> None:
        if known.deciding and b'"event.approval.resolved"' in raw:
            frame = orjson.loads(raw)
            approval = (frame.get("payload") or {}).get("approval_id")
            if frame.get("type") == "event.approval.resolved" and approval in known.deciding:
                known.held.append((str(approval), raw))
                return
        if known.held:
            known.held.append(("", raw))
            return
        self._pass(name, raw)

    def _pass(self, name: str, raw: bytes) -> None:
        self.figures.frames += 1
        known = self._known.get(name)
        if known is not None and known.sequence.halted:
            return
        line = raw if b"\n" not in raw else orjson.dumps(orjson.loads(raw))
        if not self._outbox.put(line) and known is not None:
            # It comes again, and with it all that follows, when the service is there.
            known.live = False
            known.sequence.halt()
            self._want(name)

    def _want(self, name: str) -> None:
        if len(self._wanted) < _MOST_KNOWN:
            self._wanted[name] = None
            self._wake.set()

    async def _converse(self, hello: asyncio.Future[JSON]) -> None:
        """Say hello, then subscribe to whatever turns up."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                await hello
        except TimeoutError:
            self._say("mute")
            raise Lost from None
        self._say("live")
        while True:
            await self._wake.wait()
            self._wake.clear()
            names = list(self._wanted)[:_PAGE]
            for name in names:
                del self._wanted[name]
            if self._wanted:
                self._wake.set()
            if names:
                await self._subscribe(names)

    async def _subscribe(self, names: list[str]) -> None:
        try:
            if not self._outbox.roomy:
                raise ServiceAway
            stored = await self._outbox.cursors(names)
        except ServiceAway:
            # The frames wait at the server; so do we.
            await asyncio.sleep(_FIRST_PAUSE)
            for name in names:
                self._want(name)
            return
        cursors: JSON = {}
        for name in names:
            known = self._known.setdefault(name, _Known())
            told = stored.get(name)
            if name in self._oversized:
                # Asked for again, the frame that is too large would only come again.
                self._oversized.discard(name)
                self._resync[name] = "oversized"
                known.sequence.again(None, None)
            elif told is not None and isinstance(told.get("seq"), int):
                epoch = told.get("epoch")
                known.sequence.again(None if epoch == "-" else epoch, told["seq"])
            else:
                known.sequence.again(None, 0 if await self._young(name) else None)
            if known.sequence.seq is not None:
                cursors[name] = {"seq": known.sequence.seq}
                if known.sequence.epoch is not None:
                    cursors[name]["epoch"] = known.sequence.epoch
        ack = await self._request("subscribe", {"session_ids": names, "cursors": cursors})
        accepted = _names(ack.get("accepted"))
        for name in _names(ack.get("resync_required")):
            self._resync.setdefault(name, "resync_required")
        stands = ack.get("cursors")
        for name in names:
            if name not in accepted:
                self._known.pop(name, None)
                self._resync.pop(name, None)
                continue
            await self._accepted(
                name, stands.get(name) if isinstance(stands, dict) else None, stored.get(name)
            )
        self._outbox.tell({"link": "claim", "ids": [name for name in names if name in accepted]})

    async def _accepted(self, name: str, stands: Any, stored: JSON | None) -> None:
        """The server sends this session's frames from now on; what it could not send, a snapshot tells."""
        known = self._known[name]
        if known.sequence.halted:
            return
        at = stands if isinstance(stands, dict) else {}
        seq = at.get("seq")
        reason = self._resync.pop(name, None)
        if reason is None and known.sequence.seq is not None:
            for ready in known.sequence.acknowledged(at.get("epoch"), seq if isinstance(seq, int) else None):
                self._forward(name, known, ready)
            if known.sequence.broken:
                known.tries = known.tries + 1 if known.stuck_at == known.sequence.seq else 1
                known.stuck_at = known.sequence.seq
                if known.tries < _PATIENCE:
                    self._want(name)
                    return
                reason = "gap"
            elif stored is None or not stored.get("open"):
                known.live, known.tries = True, 0
                return
        await self._snapshot(name, known, reason)

    async def _snapshot(self, name: str, known: _Known, reason: str | None) -> None:
        known.sequence.pause()
        try:
            line = await self._rest.snapshot(name)
        except RestError:
            self._known.pop(name, None)
            return
        seq, epoch = line.get("seq"), line.get("epoch")
        if not isinstance(seq, int) or isinstance(seq, bool) or not isinstance(epoch, str | None):
            self._known.pop(name, None)
            return
        stood = known.sequence
        if self._known.get(name) is not known or stood.halted:
            return
        if reason is not None:
            self.figures.resyncs += 1
            line["reason"] = reason
            if stood.epoch == epoch and stood.seq is not None:
                line["missed"] = max(0, seq - stood.seq)
        if not self._outbox.put(orjson.dumps(line)):
            stood.halt()
            self._want(name)
            return
        for ready in stood.start(epoch, seq):
            self._forward(name, known, ready)
        known.live, known.tries = not stood.broken, 0
        if stood.broken:
            self._want(name)

    def write(self, write: JSON) -> None:
        """Do one thing that the service wants, and tell it what came of it."""
        task = asyncio.ensure_future(self._write(write))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, write: JSON) -> None:
        session, approval = str(write.get("session")), write.get("approval")
        outcome, code = "refused", 0
        known = self._known.get(session)
        if known is not None and isinstance(approval, str):
            known.deciding.add(approval)
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                if write.get("do") == "abort":
                    done = await self._rest.abort(session)
                else:
                    words = write.get("feedback")
                    done = await self._rest.decide(
                        session,
                        str(approval),
                        str(write.get("decision")),
                        words if isinstance(words, str) else None,
                    )
            outcome = "done" if done else "gone"
        except RestError as error:
            code = error.code
            outcome = "gone" if code in GONE else "refused" if code else "unknown" if error.sent else "away"
        except LinkError:
            outcome = "unauthorized"
        except TimeoutError:
            outcome = "unknown"
        line = {"link": "result", "id": write.get("id"), "session_id": session, "outcome": outcome}
        self._outbox.tell(line | ({"code": code} if code else {}))
        if known is not None:
            known.deciding.discard(str(approval))
            self._release(session, known)

    def _release(self, name: str, known: _Known) -> None:
        """What was held for the sake of a decision goes on, up to one that is still undecided."""
        waiting, known.held = known.held, []
        for place, (approval, raw) in enumerate(waiting):
            if approval in known.deciding:
                known.held = waiting[place:]
                return
            self._pass(name, raw)

    async def _young(self, name: str) -> bool:
        """Whether a session that the service does not know began so lately that all of it is of interest."""
        began = self._asked.get(name)
        if began is None:
            try:
                began = str((await self._rest.session(name)).get("created_at"))
            except RestError:
                return False
        try:
            return time.time() - datetime.fromisoformat(began).timestamp() < _YOUNG_SECONDS
        except ValueError:
            return False

    async def _look(self) -> None:
        """See which sessions there are, and whether the server still takes connections."""
        tried: dict[str, tuple[str, int | None]] = {}
        listed = 0.0
        while True:
            if await self._rest.refused():
                raise Closing
            every = _LIST_SECONDS_TOLD if self._tells else _LIST_SECONDS
            if time.monotonic() - listed >= every and self.figures.state == "live":
                listed = time.monotonic()
                with suppress(RestError):
                    self._list(await self._rest.sessions(), tried)
            await asyncio.sleep(_PORT_SECONDS)

    def _list(self, items: Iterable[JSON], tried: dict[str, tuple[str, int | None]]) -> None:
        """Try every session that is new here, or has changed since the server said it was not loaded."""
        for item in items:
            name = item.get("id")
            if not isinstance(name, str):
                continue
            known = self._known.get(name)
            stands = None if known is None else known.sequence.seq
            changed = f"{item.get('updated_at')} {item.get('busy')}"
            before = tried.get(name)
            tried[name] = (changed, stands)
            # One that changed while none of its frames came is no longer subscribed to.
            if before is None or (before[0] != changed and (known is None or before[1] == stands)):
                created = item.get("created_at")
                if isinstance(created, str):
                    self._asked[name] = created
                self._want(name)
        for forgotten in list(tried)[: max(0, len(tried) - _MOST_KNOWN)]:
            del tried[forgotten]
            self._asked.pop(forgotten, None)

    async def _probe(self) -> None:
        """A stream that says nothing is asked whether it lives."""
        while True:
            await asyncio.sleep(_SILENCE_SECONDS / 3)
            if time.monotonic() - self._heard > _SILENCE_SECONDS:
                await self._request("subscribe", {"session_ids": []}, _PROBE_SECONDS)

    async def _request(self, kind: str, payload: JSON, seconds: float = _ACK_SECONDS) -> JSON:
        """Send a frame and wait for its acknowledgement. Raises `Lost`."""
        name = f"aep-{next(self._numbers)}"
        self._acks[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._send(kind, payload, name)
                return await self._acks[name]
        except TimeoutError:
            self._say("mute")
            raise Lost from None
        finally:
            self._acks.pop(name, None)

    async def _send(self, kind: str, payload: JSON, id: str | None = None) -> None:
        assert self._socket is not None
        frame: JSON = {"type": kind, "payload": payload}
        if id is not None:
            frame["id"] = id
        await self._socket.send(orjson.dumps(frame).decode())

    def _settle(self, name: str, payload: JSON) -> None:
        waiting = self._acks.get(name)
        if waiting is not None and not waiting.done():
            waiting.set_result(payload)

    def _forget(self) -> None:
        """The connection is over: nothing that it knew holds any more."""
        for known in self._known.values():
            for _, raw in known.held:
                self._outbox.put(raw)
        self._socket = None
        self._known.clear()
        self._wanted.clear()
        self._resync.clear()
        self._acks.clear()
        self._wake.clear()
        self._tells = False

    def _say(self, state: str) -> None:
        if self.figures.state != state:
            level = logging.INFO if state in ("live", "closing") else logging.WARNING
            log.log(level, "%s: %s", self.address.place, _WORDS.get(state, state))
        self.figures.state = state


_PAGE = 50
_STATES: dict[type[LinkError], str] = {
    Closing: "closing",
    Unauthorized: "unauthorized",
    Strange: "strange",
    Lost: "lost",
}
_WORDS = {
    "live": "watching",
    "mute": "connected, but it says nothing",
    "lost": "the connection is lost",
    "closing": "takes no connections any more; let go of it",
    "unauthorized": "refuses the token of server.token",
    "strange": "is no server of Kimi Code",
}


def _names(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
