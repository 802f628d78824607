"""`aep-kimi sink`: events in files, one JSON line each."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.client import ServiceError, address, bearer
from deploy.cli.tail import build_filter

if TYPE_CHECKING:
    from deploy.sink.source import Source
    from deploy.sink.store import Store

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "sink",
        help="write events to files, one JSON line each",
        description="Write every event once to DIR/HOST/AGENT/SESSION.jsonl, and go on where it was stopped "
        "or killed. Events are synced to the disk in batches.",
        epilog="Example: aep-kimi sink --out /var/lib/aep. With a ws:// or wss:// URL it subscribes at "
        "/socket, else it reads /stream. AEP_TOKEN is the token it shows. An error ends it with 1; whoever "
        "starts it again loses nothing that the endpoint still holds.",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder; made if missing")
    parser.add_argument("--url", help="the AEP endpoint (default: AEP_URL)")
    parser.add_argument("--type", action="append", metavar="PATTERN", help="only this type or 'prefix.*'")
    parser.add_argument("--session", action="append", metavar="ID", help="only this session; repeatable")
    parser.add_argument(
        "--severity",
        choices=["debug", "info", "notice", "warning", "error", "critical"],
        help="only events of this severity and above",
    )
    parser.add_argument(
        "--capture", choices=["none", "metadata", "redacted", "full"], help="keep at most this much"
    )
    parser.add_argument(
        "--rotate", type=size, default=64 << 20, metavar="SIZE", help="size of a file's parts (default: 64M)"
    )
    parser.add_argument(
        "--sync", type=float, default=1.0, metavar="SECONDS", help="longest wait for the disk (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="write what is held now, and stop")


def size(text: str) -> int:
    """Bytes, with K, M or G."""
    match = re.fullmatch(r"(\d{1,9})([kmg]?)b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"not a size such as 64M: {text!r}")
    return int(match[1]) * _SIZES[match[2]]


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    from deploy.sink.source import Hopeless, Interrupted, Source, Wanted
    from deploy.sink.store import Store, StoreError

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        url, token = address(args.url, ("http", "https", "ws", "wss")), bearer()
    except ServiceError as error:
        return _fail(str(error), 2)
    if args.once and url.startswith("ws"):
        return _fail("--once reads /stream: give an http:// URL", 2)
    try:
        store = Store(args.out, rotate=args.rotate)
    except StoreError as error:
        return _fail(str(error), 1)
    try:
        if store.repaired:
            print(f"aep-kimi sink: repaired {store.repaired} torn lines", file=sys.stderr)
        wanted = Wanted(
            url=url,
            token=token,
            filter=build_filter(args.type, args.session, args.severity),
            capture=args.capture,
            live=not args.once,
        )
        source = Source(wanted, store.positions)
        print(f"aep-kimi sink: writing to {args.out}, {store.count()} events are there", flush=True)
        written = asyncio.run(work(source, store, args.sync))
        print(f"aep-kimi sink: stopped, {written} events written", flush=True)
        return 0
    except (Hopeless, Interrupted) as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(f"cannot write: {error}", 1)
    finally:
        store.close()


async def work(source: Source, store: Store, sync: float) -> int:
    """Read and write until the source ends or a signal comes; how many events were written."""
    from deploy.sink.store import read
    from deploy.sink.waiting import Waiting

    waiting = Waiting()
    written = malformed = 0

    async def fill() -> None:
        nonlocal malformed
        try:
            async with contextlib.aclosing(source.events()) as events:
                async for body in events:
                    item = read(body)
                    if item is None:
                        malformed += 1
                    else:
                        await waiting.put(item)
        finally:
            await waiting.close()

    reader = asyncio.create_task(fill())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, reader.cancel)
    try:
        while batch := await waiting.take(sync):
            written += await asyncio.to_thread(store.write, batch)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    if malformed:
        print(f"aep-kimi sink: {malformed} messages were no events", file=sys.stderr)
    if not reader.cancelled() and (error := reader.exception()) is not None:
        raise error
    return written


def _fail(text: str, code: int) -> int:
    print(f"aep-kimi sink: {text}", file=sys.stderr)
    return code
