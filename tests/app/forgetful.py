"""A way to Redis that forgets connections without a word, as address translation does with idle ones."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path


class Forgetful:
    """Passes bytes on between unix sockets; whatever was open at `forget` gets nothing through any more."""

    def __init__(self, target: str, path: str) -> None:
        self._target = target.removeprefix("unix://")
        self._generation = 0
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def forget(self) -> None:
        """Swallow what comes on the connections of now."""
        self._generation += 1

    def close(self) -> None:
        """End it."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    passing = threading.Thread(target=self._pass, args=(source, sink, self._generation))
                    self._threads.append(passing)
                    passing.start()

    def _pass(self, source: socket.socket, sink: socket.socket, generation: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._generation == generation:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def forgetful(target: str) -> Iterator[tuple[str, Forgetful]]:
    """The URL of such a way to `target`, and the way."""
    with tempfile.TemporaryDirectory(prefix="aep") as directory:
        path = str(Path(directory) / "p.sock")
        way = Forgetful(target, path)
        try:
            yield f"unix://{path}", way
        finally:
            way.close()
