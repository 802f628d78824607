"""Processor time of one event by the steps it takes, in one process without a server around it.

`python -m tests.bench.inside JSON` takes `redis` and `rounds`, and prints microseconds for each step: the
best of the rounds, which other work of the machine disturbs least.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette

from tests.bench.events import conversation

_WORKERS = 32
_EACH = 25
_SESSIONS = 1_000
_TURN = 160
STEPS = ("parse", "map", "reduce", "encode the state", "finish the events")
_TOKEN = "bench-token-bench-token-bench-token"


def bodies(first: int, step: int) -> Iterator[bytes]:
    """Turn after turn of every `step`th session."""
    events = [json.dumps(event) for event in conversation()]
    lap = 0
    while True:
        for number, event in enumerate(events):
            for session in range(first, _SESSIONS, step):
                call = f"call_{lap * 8 + (number + 1) // 2:08d}"
                yield event.replace("SESSION", f"in-{session:06d}").replace("CALL", call).encode()
        lap += 1


async def work(app: Starlette, events: Iterator[bytes]) -> None:
    """Some requests one after the other."""
    for _ in range(_EACH):
        body = next(events)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/hook",
            "raw_path": b"/hook",
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1:8398"),
                (b"content-type", b"application/json"),
                (b"authorization", b"Bearer " + _TOKEN.encode()),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8398),
            "state": {},
        }

        async def receive(body: bytes = body) -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            assert message.get("status", 200) == 200, message

        await app(scope, receive, send)


async def whole(app: Starlette, rounds: int) -> float:
    """Seconds of the processor for one request, the best of the rounds."""
    sources = [bodies(number, _WORKERS) for number in range(_WORKERS)]
    best = float("inf")
    async with app.router.lifespan_context(app):
        for _ in range(rounds):
            began = time.process_time()
            await asyncio.gather(*[work(app, events) for events in sources])
            best = min(best, (time.process_time() - began) / (_WORKERS * _EACH))
    return best


def steps(rounds: int) -> dict[str, float]:
    """Seconds of the processor for each pure step."""
    from handlers.aep.canonical import parse
    from handlers.aep.capture import Posture
    from handlers.aep.envelope import finish, source_uri
    from handlers.aep.ulid import Mint
    from handlers.lifecycle.reducer import Input, reduce
    from handlers.lifecycle.state import SessionState
    from handlers.mapping.hooks import map_hook

    posture = Posture()
    source = bodies(0, _SESSIONS)
    state: SessionState | None = None
    now = time.time_ns() // 1_000_000
    best: dict[str, float] = {}
    marks: list[float] = []

    def mark() -> None:
        marks.append(time.process_time())

    for _ in range(rounds):
        turn = [next(source) for _ in range(_TURN)]
        now += 1_000
        marks.clear()
        mark()
        payloads = [parse(body) for body in turn]
        mark()
        moments = [map_hook(payload, posture) for payload in payloads if isinstance(payload, dict)]
        mark()
        reductions = []
        for moment in moments:
            given = (Input(moment, now, Mint(now, os.urandom(10))),)
            reductions.append(reduce(state, given, now, own=True))
            state = reductions[-1].state
        mark()
        for reduction in reductions:
            reduction.state.encode()
        mark()
        for reduction in reductions:
            for event in reduction.events:
                finish(
                    event.draft,
                    id=event.id,
                    time_ms=event.time_ms,
                    source=source_uri("bench", "kimi-code", "in-000000"),
                    agent="kimi-code",
                    session="in-000000",
                    seq=event.seq,
                    run=event.run,
                    cause=event.cause,
                )
        mark()
        for name, began, ended in zip(STEPS, marks, marks[1:], strict=False):
            best[name] = min(best.get(name, 1.0), (ended - began) / _TURN)
    return best


async def measure(wanted: dict[str, Any]) -> dict[str, float]:
    """All of it, in microseconds."""
    os.environ["BENCH_REDIS_URL"] = wanted["redis"]
    from handlers.app import create_app
    from handlers.settings import Settings
    from tests.bench import floors

    settings = {
        "AEP_REDIS_URL": wanted["redis"],
        "AEP_TOKEN": _TOKEN,
        "AEP_EMITTER": "bench",
        "AEP_HOOK_TIMEOUT_MS": "10000",
        "AEP_REDIS_PREFIX": "inside",
    }
    rounds: int = wanted["rounds"]
    found = {
        "echo": await whole(floors.echo, rounds),
        "script": await whole(floors.script, rounds),
        "service": await whole(create_app(Settings.from_env(settings)), rounds),
    }
    return {name: value * 1e6 for name, value in (found | steps(rounds)).items()}


def main() -> None:
    """Run it on the loop that the service uses."""
    work_to_do = measure(json.loads(sys.argv[1]))
    try:
        import uvloop
    except ImportError:
        print(json.dumps(asyncio.run(work_to_do)))
    else:
        print(json.dumps(uvloop.run(work_to_do)))


if __name__ == "__main__":
    main()
