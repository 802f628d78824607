"""Lines that carry their time: the agent of the latency measurement, `python stamps.py write|read`."""

from __future__ import annotations

import os
import sys
import time

FORM = b'{"jsonrpc":"2.0","method":"session/update","params":{"t":%d}}\n'
_MARK = b'"t":'


def write(fd: int, rate: int, count: int) -> None:
    """`count` lines at `rate` a second, a few at a time where the clock is coarser than the rate."""
    start = time.monotonic()
    for number in range(count):
        due = start + number / rate
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        os.write(fd, FORM % time.monotonic_ns())


def read(fd: int) -> list[int]:
    """The delays of all lines up to the end, in nanoseconds."""
    delays: list[int] = []
    rest = b""
    while chunk := os.read(fd, 65536):
        now = time.monotonic_ns()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            at = line.find(_MARK)
            if at > 0:
                delays.append(now - int(line[at + 4 : -2]))
    return delays


def main() -> None:
    mode, *rest = sys.argv[1:]
    if mode == "write":
        os.read(0, 10)
        write(1, int(rest[0]), int(rest[1]))
    else:
        os.write(1, b"ready\n")
        found = b"\n".join(b"%d" % delay for delay in read(0))
        view = memoryview(found)
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
