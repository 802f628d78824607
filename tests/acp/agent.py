"""Agents for the tests, run as `python agent.py MODE`: each uses raw file descriptors only."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    mode, *rest = sys.argv[1:]
    if mode == "echo":
        while chunk := os.read(0, 65536):
            write(1, chunk)
    elif mode == "exit":
        os.read(0, 1)
        write(1, b'{"jsonrpc":"2.0","method":"bye"}\n')
        write(2, b"going\n")
        os._exit(int(rest[0]))
    elif mode == "signal":
        os.kill(os.getpid(), int(rest[0]))
    elif mode == "report-signals":
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, lambda number, _: write(1, b"%d\n" % number))
        write(1, b"ready\n")
        while os.read(0, 65536):
            pass
    elif mode == "pid":
        write(1, b"%d\n" % os.getpid())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    elif mode == "burst":
        count, size = int(rest[0]), int(rest[1])
        line = b'{"jsonrpc":"2.0","method":"x","params":{"s":"' + b"a" * size + b'"}}\n'
        for _ in range(count):
            write(1, line)
        os.read(0, 1)
    elif mode == "grandchild":
        child = os.fork()
        if child == 0:
            os.setsid()
            time.sleep(float(rest[0]))
            os._exit(0)
        write(1, b"%d\n" % child)
        os._exit(4)
    elif mode == "environ":
        with open("/proc/self/environ", "rb") as block:
            write(1, block.read())
        write(1, b"\n" + os.getcwd().encode() + b"\n" + b"\0".join(os.fsencode(a) for a in rest))
    elif mode == "close-input":
        os.close(0)
        write(1, b"closed\n")
        time.sleep(float(rest[0]))


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
