"""Stands before an agent and keeps the bytes of both directions: `python spy.py FOLDER COMMAND…`.

`FOLDER/in` is what the agent was told, `FOLDER/out` what it said; the exit code is the agent's.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO


def copy(source: IO[bytes], target: IO[bytes], kept: Path) -> None:
    with kept.open("wb", buffering=0) as keep:
        while chunk := os.read(source.fileno(), 65536):
            keep.write(chunk)
            try:
                target.write(chunk)
                target.flush()
            except OSError:
                break
    with contextlib.suppress(OSError):
        target.close()


def main() -> int:
    folder = Path(sys.argv[1])
    agent = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    threading.Thread(target=copy, args=(sys.stdin.buffer, agent.stdin, folder / "in"), daemon=True).start()
    copy(agent.stdout, sys.stdout.buffer, folder / "out")
    return agent.wait()


if __name__ == "__main__":
    sys.exit(main())
