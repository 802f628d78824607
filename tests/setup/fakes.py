"""A Kimi Code that only tells its version, and a service that only answers what `doctor` asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def fake_kimi(
    folder: Path, version: str, package: str = "@moonshot-ai/kimi-code", says: str | None = None
) -> Path:
    """An npm installation: `bin/kimi`, a link into `lib/node_modules/<package>/dist/main.mjs`."""
    root = folder / "lib" / "node_modules" / package
    (root / "dist").mkdir(parents=True)
    (root / "package.json").write_text(json.dumps({"name": package, "version": version}))
    main = root / "dist" / "main.mjs"
    answer = version if says is None else says
    main.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --version) printf "%s\\n" "{answer}" ;;\n'
        'doctor) grep -q REFUSED "$3" && { echo "hooks[0].event: Invalid option"; exit 1; }; exit 0 ;; esac\n'
    )
    main.chmod(0o755)
    (folder / "bin").mkdir(exist_ok=True)
    kimi = folder / "bin" / "kimi"
    kimi.symlink_to(main)
    return kimi


class _Handler(BaseHTTPRequestHandler):
    server: FakeService

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.server
        path = self.path.partition("?")[0]
        authorised = not fake.token or self.headers.get("Authorization") == f"Bearer {fake.token}"
        if path == "/healthz":
            self._answer(200, json.dumps({"ok": fake.ok, "relay": False}).encode(), "application/json")
        elif path == "/stream" and not authorised:
            self._answer(401, b"{}", "application/json")
        elif path == "/stream" and not fake.watch:
            self._answer(403, b"{}", "application/json")
        elif path == "/stream":
            assert self.path == "/stream?from=all&live=0"
            self._answer(200, fake.stream, "text/event-stream")
        else:
            self._answer(404, b"what?", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class FakeService(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ok = True
        self.token = ""
        self.watch = True
        self.stream = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def events(self, *events: dict[str, object]) -> None:
        """What the stream replays."""
        self.stream = b": ping\n\n" + b"".join(
            b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events
        )


@contextmanager
def fake_service() -> Iterator[FakeService]:
    with FakeService() as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join(5)
