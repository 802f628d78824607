"""The observer: gets the tee's copies on standard input, posts the frames in them, ends soon after its input.

python -I -m deploy.acp.observer URL [TOKEN_FILE]
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from contextlib import suppress

from deploy.acp.delivery import Delivery
from deploy.acp.lines import Lines, frames, head_frame
from deploy.acp.outbox import Outbox
from deploy.acp.wire import Kind, Record, Records

GOODBYE_S = 0.9
_GATHER_S = 0.005
_CHUNK = 256 * 1024
_DIRECTIONS = {Kind.TO_AGENT: "c2a", Kind.TO_CLIENT: "a2c"}


class Observer:
    """Turns records into numbered lines of the batch format (see the package's documentation)."""

    def __init__(self, outbox: Outbox, conn: str) -> None:
        self._outbox = outbox
        self._conn = conn
        self._n = 0
        self._unseen = 0
        self._lines = {Kind.TO_AGENT: Lines(), Kind.TO_CLIENT: Lines()}

    def take(self, record: Record) -> None:
        if record.kind is Kind.END:
            lost = self._outbox.lost + self._unseen
            self._put(record.time_ms, "end", b'{"exit":%d,"lost":%d}' % (record.number, lost))
        elif record.kind in (Kind.LOST_TO_AGENT, Kind.LOST_TO_CLIENT):
            self._lines[Kind(record.kind - 2)].lose()
            self._miss(record.number)
        else:
            self._read(record)

    def _read(self, record: Record) -> None:
        direction = _DIRECTIONS[record.kind]
        for line, cut in self._lines[record.kind].feed(record.payload):
            if line is None:
                self._miss(1)
            elif not cut:
                for frame in frames(line):
                    self._put(record.time_ms, direction, frame)
            elif (head := head_frame(line)) is not None:
                self._put(record.time_ms, direction, head, b',"cut":true')
            else:
                self._miss(1)

    def _miss(self, count: int) -> None:
        self._n += count
        self._unseen += count

    def _put(self, time_ms: int, direction: str, frame: bytes, more: bytes = b"") -> None:
        self._n += 1
        start = f'{{"n":{self._n},"t":{time_ms},"dir":"{direction}","conn":"{self._conn}","frame":'
        self._outbox.put(start.encode() + frame + more + b"}\n")


def read_token(path: str | None) -> str | None:
    """The bearer token of a file's first line, or of `AEP_TOKEN`."""
    if path is None:
        return os.environ.get("AEP_TOKEN", "").strip() or None
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip() or None
    except (OSError, ValueError):
        return None


def observe(copies: int, delivery: Delivery) -> None:
    """Until the copies end, and then for at most `GOODBYE_S` seconds. `copies` is a file descriptor.

    Between two reads more may gather: one waking for many lines leaves the processors to the session.
    """
    outbox = Outbox()
    poster = threading.Thread(target=delivery.run, args=(outbox, GOODBYE_S), daemon=True)
    poster.start()
    observer = Observer(outbox, secrets.token_hex(8))
    records = Records()
    while chunk := os.read(copies, _CHUNK):
        for record in records.feed(chunk):
            observer.take(record)
        if len(chunk) < _CHUNK // 8:
            time.sleep(_GATHER_S)
    outbox.close()
    until = time.monotonic() + GOODBYE_S
    poster.join(until - time.monotonic())


def main() -> None:
    # The session comes first where processors are short.
    with suppress(OSError):
        os.nice(10)
    url, *rest = sys.argv[1:]
    observe(sys.stdin.fileno(), Delivery(url, read_token(rest[0] if rest else None)))
    # The poster may hang in a connection that answers nothing.
    os._exit(0)


if __name__ == "__main__":
    main()
