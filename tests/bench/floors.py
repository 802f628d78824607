"""The floors: the least that a service of this kind can do, on the same libraries."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from redis.asyncio import BlockingConnectionPool, Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

_SCRIPT = """
local n = redis.call('INCR', KEYS[1])
redis.call('HMGET', KEYS[2], 'state', 'version')
redis.call('HSET', KEYS[2], 'state', ARGV[1], 'version', n)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'e', ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'e', ARGV[1])
redis.call('EXPIRE', KEYS[2], 86400)
return n
"""


async def _echo(request: Request) -> Response:
    return Response(orjson.dumps(orjson.loads(await request.body())), media_type="application/json")


async def _tiny(request: Request) -> Response:
    await request.body()
    return Response(b"{}", media_type="application/json")


async def _script(request: Request) -> Response:
    body = await request.body()
    session = orjson.loads(body)["session_id"]
    redis: Redis = request.app.state.redis
    keys = (f"floor:n:{session}", f"floor:h:{session}", f"floor:s:{session}", "floor:feed")
    call: Any = redis.evalsha(request.app.state.sha, 4, *keys, body)
    await call
    return Response(b"{}", media_type="application/json")


@asynccontextmanager
async def _connected(app: Starlette) -> AsyncIterator[None]:
    redis = Redis.from_url(os.environ["BENCH_REDIS_URL"])
    app.state.redis, app.state.sha = redis, await redis.script_load(_SCRIPT)
    yield
    await redis.aclose()


class _Holds:
    """The least that holds requests: one subscription for the process, a future each, the answer in Redis."""

    def __init__(self) -> None:
        self.futures: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        pool = BlockingConnectionPool.from_url(os.environ["BENCH_REDIS_URL"], max_connections=16)
        self.redis = Redis(connection_pool=pool)
        listener = self.redis.pubsub()
        await listener.subscribe("floor:wake")
        task = asyncio.create_task(self._listen(listener))
        yield
        task.cancel()
        await listener.aclose()  # type: ignore[no-untyped-call]
        await self.redis.aclose()

    async def _listen(self, listener: Any) -> None:
        while True:
            message = await listener.get_message(ignore_subscribe_messages=True, timeout=60)
            if message is not None:
                future = self.futures.get(message["data"].decode())
                if future is not None and not future.done():
                    future.set_result(None)

    async def hook(self, request: Request) -> Response:
        session = orjson.loads(await request.body())["session_id"]
        future = self.futures[session] = asyncio.get_running_loop().create_future()
        answer = await self.redis.getdel(f"floor:answer:{session}")
        if answer is None:
            await future
            answer = await self.redis.getdel(f"floor:answer:{session}")
        del self.futures[session]
        return Response(answer, media_type="application/json")

    async def wake(self, request: Request) -> Response:
        session = request.query_params["session"]
        await self.redis.set(f"floor:answer:{session}", b'{"hookSpecificOutput":{}}')
        await self.redis.publish("floor:wake", session)
        return Response(b"{}", media_type="application/json")


class _Fan:
    """The least that hands an event to many: one queue each, finished bytes."""

    def __init__(self) -> None:
        self.number = 0
        self.queues: set[asyncio.Queue[bytes]] = set()

    async def hook(self, request: Request) -> Response:
        body = await request.body()
        self.number += 1
        message = b"id: %d\nevent: x\ndata: %b\n\n" % (self.number, body)
        for queue in self.queues:
            queue.put_nowait(message)
        return Response(b"{}", media_type="application/json")

    async def socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queues.add(queue)
        try:
            while True:
                message = await queue.get()
                await websocket.send_text(message[message.index(b"{") : -2].decode())
        finally:
            self.queues.discard(queue)

    async def stream(self, _: Request) -> Response:
        return StreamingResponse(self._messages(), media_type="text/event-stream")

    async def _messages(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queues.add(queue)
        try:
            yield b": hello\n\n"
            while True:
                parts = [await queue.get()]
                while not queue.empty():
                    parts.append(queue.get_nowait())
                yield b"".join(parts)
        finally:
            self.queues.discard(queue)


_fan = _Fan()

# Starlette and orjson: parse the body, send it back.
echo = Starlette(routes=[Route("/hook", _echo, methods=["POST"])])
# The smallest reply, for what is measured from outside.
tiny = Starlette(routes=[Route("/hook", _tiny, methods=["POST"])])
# Starlette and redis-py: parse the body, one EVALSHA that does about what a commit must.
script = Starlette(routes=[Route("/hook", _script, methods=["POST"])], lifespan=_connected)
# Events to many consumers out of memory, without Redis.
fan = Starlette(
    routes=[
        Route("/hook", _fan.hook, methods=["POST"]),
        Route("/stream", _fan.stream, methods=["GET"]),
        WebSocketRoute("/socket", _fan.socket),
    ]
)

_holds = _Holds()

# Requests that wait for an answer: a shared subscription and futures.
hold = Starlette(
    routes=[Route("/hook", _holds.hook, methods=["POST"]), Route("/wake", _holds.wake, methods=["POST"])],
    lifespan=_holds.running,
)
