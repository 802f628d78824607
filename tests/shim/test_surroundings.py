"""Hostile surroundings: whatever service, caller or machine do, the shim leaves in time, with 0, silent.

Nothing here measures time: a shim that did not keep its deadline would outlast the patience of the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.shim.service import PATIENCE, SHIM, Service, assert_silent, command, deaf, mute, ok, say, shim

DENY = ok(b'{"hookSpecificOutput":{"permissionDecision":"deny"}}')
SHORT = ("--timeout", "300")


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Set only when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_the_service_is_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert_silent(shim(f"http://127.0.0.1:{port}/hook"))


@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog swallows packets on Linux")
def test_the_service_swallows_packets() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        assert_silent(shim(f"http://127.0.0.1:{listener.getsockname()[1]}/hook", *SHORT))


def test_the_service_is_mute(never: threading.Event) -> None:
    with Service(mute(never)) as service:
        assert_silent(shim(service.url, *SHORT))


def test_the_service_does_not_read(never: threading.Event) -> None:
    with Service() as service:
        service.wrap = deaf(never)
        assert_silent(shim(service.url, *SHORT, event=b'{"a":"' + b"x" * (16 << 20) + b'"}'))


def test_the_service_drips(never: threading.Event) -> None:
    def drip(connection: socket.socket) -> None:
        for byte in DENY:
            connection.sendall(bytes((byte,)))
            if never.wait(0.05):
                return

    with Service(drip) as service:
        assert_silent(shim(service.url, *SHORT))


def test_the_service_resets_the_connection() -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    with Service(reset) as service:
        assert_silent(shim(service.url))


def test_proxies_locale_and_python_settings_change_nothing(tmp_path: Path) -> None:
    event = '{"prompt":"日本"}'.encode() + b" "
    with Service() as service, Service() as proxy:
        environment = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"), proxy.url)
        environment |= {"LC_ALL": "xx_YY.KOI8-R", "LANG": "C", "PYTHONIOENCODING": "bogus", "PYTHONUTF8": "0"}
        environment |= {"PYTHONHOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error"}
        environment |= {"PYTHONSTARTUP": "/nowhere", "PYTHONINSPECT": "1", "PYTHONCOERCECLOCALE": "warn"}
        for name in ("time", "_socket", "exchange", "sitecustomize", "json"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit(2)")
        assert_silent(shim(service.url, event=event, environment=environment))
        assert service.request().body == event
        assert proxy.requests.empty()


def under_sh(script: str, *arguments: str, event: bytes = b'{"a":1}') -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command(*arguments)],
        input=event,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("kind", [(), ("--detach",)])
def test_standard_input_is_closed(closed: str, kind: tuple[str, ...]) -> None:
    with Service() as service:
        assert_silent(under_sh(f'exec "$@" {closed}', service.url, *kind))
        assert service.requests.empty()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("kind", [(), ("--detach",)])
def test_standard_output_is_closed(closed: str, kind: tuple[str, ...]) -> None:
    with Service(say(DENY)) as service:
        done = under_sh(f'exec "$@" {closed}', service.url, *kind)
        assert done.returncode == 0
        assert service.request().body == b'{"a":1}'
        assert service.rest.get(timeout=PATIENCE) == b"", "the reply went into the connection"


def test_nobody_reads_the_output() -> None:
    with Service(say(DENY)) as service:
        process = subprocess.Popen(command(service.url), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin
        assert process.stdout
        process.stdout.close()
        process.stdin.write(b'{"a":1}')
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", [(), ("--detach",)])
@pytest.mark.parametrize("start", [b"", b'{"a":1', b'{"a":1}'])
def test_standard_input_is_never_closed(kind: tuple[str, ...], start: bytes) -> None:
    with Service() as service:
        with subprocess.Popen(
            command(service.url, *SHORT, *kind),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin
            process.stdin.write(start)
            process.stdin.flush()
            assert process.wait(PATIENCE) == 0
            assert process.stdout
            assert process.stdout.read() == b""
        assert service.requests.empty()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_event_is_whole(number: signal.Signals) -> None:
    with (
        Service() as service,
        subprocess.Popen(
            command(service.url, "--timeout", "600000"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdin
        # More than a pipe holds: once it is written, the shim is reading.
        process.stdin.write(b'{"a":"' + b"x" * (1 << 20))
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert service.requests.empty()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_service_thinks(number: signal.Signals, never: threading.Event) -> None:
    with (
        Service(mute(never)) as service,
        subprocess.Popen(
            command(service.url, "--timeout", "600000"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdin
        process.stdin.write(b'{"a":1}')
        process.stdin.close()
        service.request()
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stdout
        assert process.stdout.read() == b""


def test_its_installation_is_half_removed(tmp_path: Path) -> None:
    home = tmp_path / "a venv's"
    venv.create(home, symlinks=True, with_pip=False)
    for name in (SHIM.name, "exchange.py"):
        shutil.copy(SHIM.parent / name, tmp_path)
    python, script = home / "bin" / "python", tmp_path / SHIM.name
    quoted = " ".join("'" + str(part).replace("'", "'\\''") + "'" for part in (python, "-I", "-S", script))

    def run(url: str) -> subprocess.CompletedProcess[bytes]:
        line = f"{quoted} {url} || exit 0"
        return subprocess.run(
            line, shell=True, input=b'{"a":1}', capture_output=True, timeout=PATIENCE, check=False
        )

    with Service() as service:
        shutil.rmtree(home / "lib")
        (home / "pyvenv.cfg").unlink()
        assert_silent(run(service.url))
        assert service.request().body == b'{"a":1}'
        (tmp_path / "exchange.py").write_text("not Python at all")
        assert_silent(run(service.url))
        (tmp_path / "exchange.py").unlink()
        assert_silent(run(service.url))
        for rest in (script, python):
            rest.unlink()
            done = run(service.url)
            assert (done.returncode, done.stdout) == (0, b"")
        assert service.requests.empty()


def test_its_bytecode_cannot_be_kept(tmp_path: Path) -> None:
    for name in (SHIM.name, "exchange.py"):
        shutil.copy(SHIM.parent / name, tmp_path)
    (tmp_path / "__pycache__").write_text("a file")
    with Service() as service:
        line = [*command()[:3], str(tmp_path / SHIM.name), service.url]
        assert_silent(subprocess.run(line, input=b"{}", capture_output=True, timeout=PATIENCE, check=False))
        assert service.request().body == b"{}"


def test_it_may_not_start_another_process() -> None:
    if os.geteuid() == 0:
        pytest.skip("limits do not bind root")
    with Service() as service:
        assert_silent(under_sh('ulimit -u 0; exec "$@"', service.url, "--detach"))
        assert service.request().body
