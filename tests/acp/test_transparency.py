"""The session through the tee is the session without it, whatever the agent, the client or the service do."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import pytest

from tests.acp.harness import (
    AGENT,
    NOWHERE,
    TEE,
    Service,
    alive,
    children,
    direct,
    end,
    mute,
    running,
    start,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
WAIT = 60

TRAFFIC = {
    "frames": b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n' * 3,
    "blank lines": b"\n\n\r\n \n\t\n",
    "CRLF": b'{"jsonrpc":"2.0","id":1,"result":null}\r\n{"a":1}\r\n',
    "not JSON": b"Loading model...\n{broken\n]\n[[[[[[\n" + b"[" * 100_000 + b"\n",
    "not UTF-8": bytes(range(256)) * 4 + b"\n\xed\xa0\x80\xff\n",
    "no end of line": b'{"jsonrpc":"2.0","method":"x"}',
    "nothing": b"",
    "long": b'{"jsonrpc":"2.0","method":"x","params":{"s":"' + b"long " * 2_000_000 + b'"}}\nshort\n',
}


def through(process: subprocess.Popen[bytes], data: bytes) -> tuple[bytes, bytes, int]:
    with running(process):
        out, err = process.communicate(data, timeout=WAIT)
        return out, err, process.returncode


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([process.stdout], [], [], WAIT)[0], f"nothing more after {line!r}"
        byte = process.stdout.read(1)
        assert byte, f"ended after {line!r}"
        line += byte
    return line


@pytest.mark.parametrize("data", TRAFFIC.values(), ids=TRAFFIC.keys())
def test_bytes_pass_unchanged(data: bytes) -> None:
    assert through(start("echo"), data) == (data, b"", 0)


@pytest.mark.slow
def test_a_line_of_50_megabytes() -> None:
    data = b'{"jsonrpc":"2.0","method":"x","params":{"s":"' + b"0123456789" * 5_000_000 + b'"}}\nnext\n'
    with Service() as service:
        assert through(start("echo", url=service.url), data) == (data, b"", 0)


@pytest.mark.parametrize("code", [0, 1, 2, 7, 127, 255])
def test_the_exit_code_and_standard_error(code: int) -> None:
    with running(start("exit", str(code))) as process:
        out, err = process.communicate(b"x", timeout=WAIT)
        assert (out, err, process.returncode) == (
            b'{"jsonrpc":"2.0","method":"bye"}\n',
            b"going\n",
            code,
        )


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP])
def test_an_agent_that_dies_by_a_signal(signum: int) -> None:
    assert through(start("signal", str(int(signum))), b"")[2] == -signum


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_arrives_once(whole_group: bool) -> None:
    with running(start("report-signals", start_new_session=True)) as process:
        assert read_line(process) == b"ready\n"
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2) * 40:
            (os.killpg if whole_group else os.kill)(process.pid, signum)
            assert read_line(process) == b"%d\n" % signum
        out, _ = process.communicate(timeout=WAIT)
        assert (out, process.returncode) == (b"", 0)


def test_a_client_that_stops_reading_ends_the_agent() -> None:
    with running(start("burst", "100000", "1000")) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        # The test agent ends by SIGPIPE's exception, as it does without a tee.
        assert process.wait(WAIT) == 1


def test_a_client_that_dies_leaves_nobody_behind(tmp_path: Path) -> None:
    script = (
        "import subprocess,sys,time\n"
        f"p=subprocess.Popen({[*TEE, '--url', NOWHERE, '--', *AGENT, 'echo']!r},stdin=-1,stdout=-1)\n"
        "p.stdin.write(b'hi\\n');p.stdin.flush();p.stdout.readline()\n"
        "print(p.pid,flush=True);time.sleep(600)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with running(client):
        assert client.stdout is not None
        tee = int(client.stdout.readline())
        family = [tee, *children(tee)]
        assert len(family) == 3
        client.kill()
        client.wait(WAIT)
        _await_gone(family)


def test_a_killed_tee_takes_a_stubborn_agent_with_it() -> None:
    with running(start("pid")) as process:
        family = [int(read_line(process)), *children(process.pid)]
        process.kill()
        process.wait(WAIT)
        _await_gone(family)


def _await_gone(pids: list[int]) -> None:
    waiting = threading.Event()
    for _ in range(WAIT * 20):
        if not any(alive(pid) for pid in pids):
            return
        waiting.wait(0.05)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        end(pid)
    pytest.fail(f"left behind: {left}")


def test_an_agent_that_exits_is_not_awaited_for_its_children() -> None:
    with running(start("grandchild", "600")) as process:
        child = int(read_line(process))
        try:
            assert process.wait(WAIT) == 4
        finally:
            end(child)


def test_a_slow_client_gets_everything_that_the_agent_left() -> None:
    with running(start("burst", "3000", "1000")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        # Far more than pipes hold: the agent cannot exit before it is read.
        threading.Event().wait(0.5)
        assert len(process.stdout.read()) == 3000 * 1049
        assert process.wait(WAIT) == 0


def _write_on(stream: IO[bytes]) -> None:
    for _ in range(WAIT * 20):
        stream.write(b"x")
        threading.Event().wait(0.05)


def test_an_agent_that_closes_its_input() -> None:
    with running(start("close-input", "600")) as process:
        assert process.stdin is not None
        assert read_line(process) == b"closed\n"
        with pytest.raises(BrokenPipeError):
            _write_on(process.stdin)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == -signal.SIGTERM


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "as it is": dict(os.environ),
    "C locale": {"PATH": os.environ["PATH"]},
    "C locale, LC_CTYPE given": {"PATH": os.environ["PATH"], "LC_CTYPE": "C.UTF-8"},
    "odd": {"PATH": os.environ["PATH"], "LANG": "xx_XX.KLINGON", "A B": "c=d", "PYTHONPATH": "/nowhere"},
}


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_environment_directory_and_arguments(env: dict[str, str]) -> None:
    arguments = ["--url", "", "--", "a b", "*", "ä", os.fsdecode(b"\xff")]
    root = Path(__file__).parents[2]
    seen = [
        through(run("environ", *arguments, env=env, cwd=root), b"")[0].split(b"\n") for run in (start, direct)
    ]
    for each in seen:
        each[0] = b"\0".join(sorted(each[0].split(b"\0")))
    assert seen[0] == seen[1]


def test_open_descriptors_are_the_agents() -> None:
    reading, writing = os.pipe()
    try:
        code = f"import os;os.write({writing},b'from the agent')"
        command = [*TEE, "--url", NOWHERE, "--", sys.executable, "-c", code]
        assert (
            subprocess.run(command, pass_fds=[writing], stdin=subprocess.DEVNULL, timeout=WAIT).returncode
            == 0
        )
        assert os.read(reading, 100) == b"from the agent"
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(("command", "code"), [("no-such-agent", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_run(command: str, code: int) -> None:
    ended = subprocess.run([*TEE, "--", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert command in ended.stderr.decode()


def test_no_command() -> None:
    ended = subprocess.run([*TEE, "--"], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout) == (2, b"")


def test_in_a_terminal_the_agent_takes_our_place() -> None:
    ours, theirs = pty.openpty()
    try:
        command = [*TEE, "--", *AGENT, "pid"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        with running(process):
            assert int(os.read(ours, 100).split()[0]) == process.pid
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_observer_that_dies_is_not_missed() -> None:
    with Service() as service, running(start("echo", url=service.url)) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        assert read_line(process) == b"one\n"
        observer = children(process.pid)[1]
        end(observer)
        for number in range(2000):
            process.stdin.write(b"%d\n" % number)
            assert read_line(process) == b"%d\n" % number
        process.stdin.close()
        assert process.wait(WAIT) == 0


SERVICES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "down": lambda: nullcontext(NOWHERE),
    "mute": mute,
    "frozen": lambda: Service(freeze=True),
    "failing": lambda: Service(500),
    "refusing": lambda: Service(400),
    "nonsense": lambda: nullcontext("http://[bad"),
}


@pytest.mark.parametrize("make", SERVICES.values(), ids=SERVICES.keys())
def test_no_service_is_noticed(make: Callable[[], AbstractContextManager[Any]]) -> None:
    data = b'{"jsonrpc":"2.0","method":"x","params":{}}\n' * 5000
    with make() as service:
        url = service if isinstance(service, str) else service.url
        assert through(start("echo", url=url), data) == (data, b"", 0)
