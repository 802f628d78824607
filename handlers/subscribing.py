"""The subscriptions of one duplex connection (AEP-0003 §6.5): opened, replayed, delivered, dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from handlers.aep.frames import Subscribe, exhausted, parse_subscribe
from handlers.aep.levels import JSONObject, JSONValue
from handlers.delivery import Item, Mark, Outbox
from handlers.errors import FrameRefused, InvalidPosition, TooManyPositions
from handlers.fanout import Subscription
from handlers.positions import Resume, parse_resume
from handlers.replaying import Exhausted
from handlers.stream import sessions_of
from state.errors import StateError

if TYPE_CHECKING:
    from handlers.connection import Connection

log = logging.getLogger(__name__)

MOST = 256
_REPLAYS_AT_ONCE = 2
_READY_SECONDS = 2.0
_REMEMBERED = 4_096


class SharedOutbox(Outbox):
    """The box of a connection: what several of its subscriptions want in the same form goes out once."""

    __slots__ = ("_current", "_first", "_others")

    def __init__(self) -> None:
        super().__init__()
        self._current: Item | None = None
        self._first = b""
        self._others: tuple[bytes, ...] = ()

    def once(self, item: Item, payload: bytes) -> bool:
        """Whether this form of a live event is still to be sent."""
        if item is not self._current:
            self._current, self._first, self._others = item, payload, ()
            return True
        if payload is self._first or any(form is payload for form in self._others):
            return False
        self._others += (payload,)
        return True


class _Member(Subscription):
    """A subscription that knows its id and shares its connection's box."""

    __slots__ = ("_shared", "id")

    def __init__(self, connection: Connection, asked: Subscribe, *, holding: bool) -> None:
        super().__init__(
            connection,
            connection.box,
            Item.frame if connection.framing else Item.render,
            asked.filter,
            asked.capture,
            scope=connection.principal.scope,
            holding=holding,
        )
        self.id = asked.id
        self._shared = connection.box

    def deliver(self, item: Item, payload: bytes) -> None:
        if self._shared.once(item, payload):
            self._shared.put(item.rank, payload, (self.id, item.place))


class Subscriptions:
    """All subscriptions of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._members: dict[str, _Member] = {}
        self._replays: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(_REPLAYS_AT_ONCE)
        self._delivered: dict[tuple[str, str], tuple[int, int]] = {}

    async def open(self, frame: JSONObject) -> None:
        """Answer a subscribe frame. Raises `FrameRefused`; the others are not disturbed."""
        asked = parse_subscribe(frame)
        service = self._connection.service
        if asked.id in self._members:
            raise FrameRefused("invalid-filter", "this id is in use on this connection", id=asked.id)
        if len(self._members) >= MOST:
            raise FrameRefused(
                "limit-exceeded", f"a connection has at most {MOST} subscriptions", id=asked.id
            )
        resume = self._resume(asked, service.settings.max_from)
        if not await service.hub.ready(_READY_SECONDS):
            raise FrameRefused("limit-exceeded", "Redis is not there; subscribe again later", id=asked.id)
        member = _Member(self._connection, asked, holding=resume is not None)
        self._members[asked.id] = member
        self._connection.say({"type": "subscribed", "id": asked.id})
        service.hub.add(member)
        if resume is not None:
            task = asyncio.create_task(self._replay(member, asked, resume))
            self._replays[asked.id] = task

    def drop(self, identity: str) -> None:
        """Forget a subscription, known or not."""
        member = self._members.pop(identity, None)
        if member is not None:
            self._connection.service.hub.remove(member)
        task = self._replays.pop(identity, None)
        if task is not None:
            task.cancel()
        for known in [known for known in self._delivered if known[0] == identity]:
            del self._delivered[known]

    async def close(self) -> None:
        """Drop all, and wait for their replays to end; the delivered positions stay known."""
        delivered = dict(self._delivered)
        tasks = list(self._replays.values())
        for identity in list(self._members):
            self.drop(identity)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._delivered = delivered

    def note(self, marks: Iterable[Mark]) -> None:
        """These deliveries have been written, in this order."""
        last = {(sub, place[0]): place for sub, place in marks if place is not None}
        for known, (_, epoch, seq) in last.items():
            self._delivered.pop(known, None)
            self._delivered[known] = (epoch, seq)
        while len(self._delivered) > _REMEMBERED:
            del self._delivered[next(iter(self._delivered))]

    def delivered(self) -> list[JSONValue]:
        """The last delivered position of each subscription and session, for the closing frame."""
        return [
            {"sub": subscription, "session": session, "epoch": epoch, "seq": seq}
            for (subscription, session), (epoch, seq) in self._delivered.items()
        ]

    def _resume(self, asked: Subscribe, most: int) -> Resume | None:
        if asked.resume is None:
            return None
        try:
            return parse_resume(asked.resume, most)
        except TooManyPositions as error:
            raise FrameRefused("limit-exceeded", str(error), id=asked.id) from None
        except InvalidPosition as error:
            raise FrameRefused("invalid-filter", str(error), id=asked.id) from None

    async def _replay(self, member: _Member, asked: Subscribe, resume: Resume) -> None:
        """Send what is held, no faster than the consumer takes it, and then what came meanwhile."""
        connection = self._connection
        box = connection.box
        try:
            async with self._turn:
                async for chunk in connection.service.replayer.chunks(
                    resume, sessions_of(asked.wanted), scope=connection.principal.scope
                ):
                    await box.room()
                    if isinstance(chunk, Exhausted):
                        connection.say(exhausted(asked.id, chunk.session, chunk.epoch, chunk.seq))
                        continue
                    for item in chunk:
                        payload = member.replay(item)
                        if payload is not None:
                            box.force(payload, (asked.id, item.place))
            connection.service.hub.settle(member)
        except StateError as error:
            log.warning("a replay was cut short: %s", error)
            connection.lag()
        except Exception:
            log.exception("a replay failed")
            connection.lag()
        finally:
            self._replays.pop(asked.id, None)
