"""An agent command that keeps the bytes of both directions: `python record.py FOLDER COMMAND…`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def main() -> None:
    folder, *command = sys.argv[1:]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert agent.stdin is not None
    assert agent.stdout is not None
    down = threading.Thread(
        target=_copy,
        args=(0, agent.stdin.fileno(), Path(folder) / "to-agent", agent.stdin.close),
        daemon=True,
    )
    down.start()
    _copy(agent.stdout.fileno(), 1, Path(folder) / "to-client", agent.stdout.close)
    sys.exit(agent.wait())


def _copy(source: int, target: int, kept: Path, close: object) -> None:
    with kept.open("wb", buffering=0) as file:
        while chunk := os.read(source, 65536):
            file.write(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
    if callable(close):
        close()


if __name__ == "__main__":
    main()
