"""Several processes on one session and on many: nothing lost, nothing doubled, positions rise."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from state.connection import Client, Limits, connect
from state.keys import Keys, SessionKey
from state.replay import Replay
from state.sessions import Bounds, Sessions
from tests.servers import AnyServer
from tests.state.toy import Engine, Fold

PROCESSES = 4
EVENTS = 500


async def work(url: str, shards: int, sessions: int, process: int) -> dict[str, int]:
    """Submit EVENTS hooks as they come to one process, many at once."""
    client = connect(url, Limits(write=60, read=60, connect=60))
    engine = Engine(Sessions(client, Keys("aep", shards), Bounds(buffer=10_000)))

    async def one(number: int) -> None:
        key = SessionKey("host", f"session-{number % sessions}")
        await engine.submit(key, b"%d-%d" % (process, number), time.time_ns() // 1_000_000)

    for start in range(0, EVENTS, 25):
        await asyncio.gather(*(one(number) for number in range(start, start + 25)))
    await client.close()
    return {"commits": engine.commits, "conflicts": engine.conflicts}


def run_workers(url: str, shards: int, sessions: int) -> list[dict[str, int]]:
    command = [sys.executable, "-m", "tests.state.test_concurrency", url, str(shards), str(sessions)]
    workers = [
        subprocess.Popen([*command, str(process)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for process in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    return [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]


@pytest.mark.parametrize("sessions", [1, 500])
async def test_four_processes_lose_and_double_nothing(
    redis_server: AnyServer, client: Client, keys: Keys, sessions: int
) -> None:
    started = time.monotonic()
    said = await asyncio.to_thread(run_workers, redis_server.url, keys.shards, sessions)
    took = time.monotonic() - started
    found: list[bytes] = []
    store, replay = Sessions(client, keys), Replay(client, keys)
    for number in range(sessions):
        key = SessionKey("host", f"session-{number}")
        page = await replay.read(key, limit=10_000)
        positions = [position for position, _ in page.entries]
        assert positions == sorted(set(positions))
        fold = Fold()
        for position, body in page.entries:
            fold = fold.add(position, body)
        assert Fold.decode((await store.load(key)).state) == fold
        found += [body for _, body in page.entries]
    expected = [b"%d-%d" % (process, number) for process in range(PROCESSES) for number in range(EVENTS)]
    assert sorted(found) == sorted(expected)
    print(f"{PROCESSES} processes, {sessions} sessions: {took:.2f} s, {said}")


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(work(sys.argv[1], *map(int, sys.argv[2:])))))
