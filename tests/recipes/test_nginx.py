"""The site for nginx with two real replicas behind it."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.app.processes import Process, processes
from tests.app.replica import fresh_prefix
from tests.recipes.test_recipes import DEPLOY, run
from tests.servers import AnyServer, free_port

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@contextmanager
def nginx(directory: Path, replicas: list[Process]) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The site on a port of its own; `https://host:port`, and what trusts it."""
    port = free_port()
    key, certificate = directory / "k.pem", directory / "c.pem"
    names = "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    made = f"-keyout {key} -out {certificate} -days 1 {names}"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made.split())
    site = (DEPLOY / "proxy" / "nginx.conf").read_text()
    for address, replica in zip(("127.0.0.11:8398", "127.0.0.12:8398"), replicas, strict=True):
        assert address in site
        site = site.replace(address, replica.url.removeprefix("http://"))
    for pattern, ours in (
        (r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (r"/etc/ssl/certs/\S+(?=;)", str(certificate)),
        (r"/etc/ssl/private/\S+(?=;)", str(key)),
        (r"/var/log/nginx", str(directory)),
        (r"aep\.example\.org", "localhost"),
    ):
        site = re.sub(pattern, ours, site)
    kept = "".join(
        f"{name}_temp_path {directory}/{name}; "
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"daemon off; pid {directory}/pid; events {{}} http {{ {kept} {site} }}"
    (directory / "nginx.conf").write_text(whole)
    log = directory / "error.log"
    server = subprocess.Popen(["nginx", "-e", str(log), "-c", str(directory / "nginx.conf")])
    trust = ssl.create_default_context(cafile=certificate)
    url = f"https://localhost:{port}"
    try:
        for _ in range(200):
            try:
                ask(url, trust, "/healthz")
                break
            except OSError:
                time.sleep(0.05)
        yield url, trust
    finally:
        server.terminate()
        server.wait(20)


def ask(url: str, trust: ssl.SSLContext, path: str, payload: object = None) -> tuple[str, str]:
    """The body of an answer, and its `AEP-Stored`."""
    body = None if payload is None else json.dumps(payload).encode()
    request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json", **BEARER})
    with urllib.request.urlopen(request, timeout=20, context=trust) as answer:
        return answer.read().decode(), answer.headers.get("aep-stored", "")


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("openssl") is None,
    reason="nginx or openssl is not installed",
)
def test_streams_and_sockets_pass_and_a_dead_replica_costs_no_hook(
    redis_server: AnyServer, tmp_path: Path
) -> None:
    environment = {
        "AEP_REDIS_URL": redis_server.url,
        "AEP_REDIS_PREFIX": fresh_prefix(),
        "AEP_SHARDS": str(redis_server.shards),
        "AEP_TOKEN": TOKEN,
        "AEP_HOOK_TIMEOUT_MS": "5000",
    }
    with processes(2, environment) as replicas, nginx(tmp_path, replicas) as (url, trust):

        def hook(session: str, number: int) -> str:
            payload = {"hook_event_name": "UserPromptSubmit", "session_id": session, "prompt": str(number)}
            return ask(url, trust, "/hook", payload)[1]

        stream = urllib.request.Request(f"{url}/stream", headers=BEARER)
        with (
            urllib.request.urlopen(stream, timeout=20, context=trust) as events,
            connect(f"wss{url[5:]}/socket", ssl=trust, additional_headers=BEARER) as ws,
        ):
            assert events.readline() == b": connected\n"
            hello = {"type": "hello", "versions": ["0.1"], "role": "consumer", "identity": {"name": "n"}}
            ws.send(json.dumps(hello))
            ws.recv(20)
            ws.send(json.dumps({"type": "subscribe", "id": "1", "filter": {}}))
            ws.recv(20)
            assert hook("live", 0) == "yes"
            assert json.loads(ws.recv(20))["session"] == "live"
            line = next(line for line in events if line.startswith(b"data: "))
            assert json.loads(line[6:])["session"] == "live"
        assert [hook("s1", number) for number in range(10)] == ["yes"] * 10
        replicas[0].kill()
        assert [hook("s1", number) for number in range(20)] == ["yes"] * 20
        held, _ = ask(url, trust, "/stream?from=all&live=0")
        # Each was stored once, however often it was tried.
        assert held.count("event: run.started\n") == 31
    assert TOKEN not in (tmp_path / "aep-kimi.log").read_text()
