"""A proxy before Redis that can lose replies: what was asked is done, and the answer never arrives."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.servers import Server


class LossyProxy:
    """Passes bytes on. While `losses` is above zero, a script's reply is dropped, and its connection too."""

    def __init__(self, target: str, path: str) -> None:
        self.losses = 0
        self.lost = 0
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for connection in (self._listener, *tuple(self._open)):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass, args=(near,))
                self._threads.append(thread)
                thread.start()

    def _pass(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            self._open |= {near, far}
            asked = threading.Event()
            there = threading.Thread(target=self._there, args=(near, far, asked))
            try:
                far.connect(self._target)
                there.start()
                while data := far.recv(65_536):
                    if asked.is_set() and self.losses > 0:
                        self.losses -= 1
                        self.lost += 1
                        break
                    asked.clear()
                    near.sendall(data)
            except OSError:
                pass
            finally:
                for connection in (near, far):
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                if there.ident is not None:
                    there.join(10)
                self._open -= {near, far}

    @staticmethod
    def _there(near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65_536):
                if b"EVALSHA" in data:
                    asked.set()
                far.sendall(data)
            far.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lossy(server: Server) -> Iterator[tuple[str, LossyProxy]]:
    """The URL of a proxy before a server on a socket, and the proxy."""
    with tempfile.TemporaryDirectory(prefix="aep") as directory:
        path = str(Path(directory) / "p.sock")
        proxy = LossyProxy(server.path, path)
        try:
            yield server.url.replace(server.path, path), proxy
        finally:
            proxy.close()
