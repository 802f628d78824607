"""Letting go: a hook that the agent kills at the end of a turn still delivers its event.

The launch is the vendor's (kimi-code 2.1.0 hook runner): ``/bin/sh -c`` in a session of its own, the event
on its standard input; the kill is SIGTERM to the process group, and SIGKILL 100 ms later.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.shim.service import PATIENCE, Service, command, deaf, mute, ok, say

# As setup registers the killed kinds: the shell ignores SIGTERM from its first millisecond on, and the
# interpreter, which takes seven to load, inherits that.
LINE = "trap '' TERM; {} || exit 0"
# Where the system has setsid, it goes ahead of the interpreter: SIGKILL does not reach that either.
SESSION_LINE = "trap '' TERM; setsid {} || exit 0"


def launch(url: str, *arguments: str, line: str = LINE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", line.format(shlex.join(command(url, *arguments)))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def until_deaf(process: subprocess.Popen[bytes]) -> None:
    """Wait until the shell ignores SIGTERM, its first word; a loaded machine may take long to start it."""
    status = Path(f"/proc/{process.pid}/status")
    until = time.monotonic() + PATIENCE
    while status.exists() and time.monotonic() < until:
        ignored = re.search(r"(?m)^SigIgn:\s*([0-9a-f]+)$", status.read_text())
        assert ignored
        if int(ignored[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the group; it may be gone already."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def test_the_agent_is_let_go_while_the_service_is_mute() -> None:
    never = threading.Event()
    with Service(mute(never)) as service:
        process = launch(service.url, "--detach", "--timeout", "600000")
        assert process.communicate(b'{"a":1}', timeout=PATIENCE) == (b"", b"")
        assert process.returncode == 0
        assert service.request().body == b'{"a":1}'
        never.set()


def test_a_large_event_is_read_before_the_agent_is_let_go() -> None:
    event = b'{"a":"' + b"x" * (8 << 20) + b'"}'
    with Service() as service:
        process = launch(service.url, "--detach")
        assert process.communicate(event, timeout=PATIENCE) == (b"", b"")
        assert service.request().body == event


def test_a_relayed_word_is_for_nobody() -> None:
    with Service(say(ok(b'{"message":"m"}'))) as service:
        process = launch(service.url, "--detach")
        assert process.communicate(b"{}", timeout=PATIENCE) == (b"", b"")
        assert service.request().body == b"{}"


def test_a_kill_of_the_group_does_not_reach_what_was_let_go() -> None:
    gate = threading.Event()
    with Service() as service:
        service.wrap = deaf(gate)
        process = launch(service.url, "--detach", "--timeout", "600000")
        assert process.stdin
        until_deaf(process)
        kill(process, signal.SIGTERM)
        process.stdin.write(b'{"a":1}')
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
        kill(process, signal.SIGTERM)
        kill(process, signal.SIGKILL)
        gate.set()
        assert service.request().body == b'{"a":1}'
        for stream in (process.stdout, process.stderr):
            assert stream
            assert stream.read() == b""
            stream.close()


def test_an_event_cut_by_the_kill_is_not_posted() -> None:
    with Service() as service:
        process = launch(service.url, "--detach", "--timeout", "600000")
        assert process.stdin
        process.stdin.write(b'{"a":{"b":1}' + b" " * (1 << 20))
        kill(process, signal.SIGKILL)
        process.stdin.close()
        process.wait(PATIENCE)
        # The one that was let go holds the other ends of these until it has read everything.
        probe = launch(service.url)
        probe.communicate(b'{"probe":1}', timeout=PATIENCE)
        assert service.request().body == b'{"probe":1}'
        assert service.requests.empty()
        for stream in (process.stdout, process.stderr):
            assert stream
            stream.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid here")
@pytest.mark.parametrize("after", [0.005, 0.02, 0.05])
def test_killed_soon_after_its_start_it_delivers_twenty_of_twenty(after: float) -> None:
    with Service() as service:
        for number in range(20):
            process = launch(service.url, "--detach", line=SESSION_LINE)
            assert process.stdin
            process.stdin.write(b'{"a":%d}' % number)
            process.stdin.close()
            until_deaf(process)
            time.sleep(after)
            kill(process, signal.SIGTERM)
            time.sleep(0.1)
            kill(process, signal.SIGKILL)
            process.wait(PATIENCE)
            for stream in (process.stdout, process.stderr):
                assert stream
                stream.close()
        assert [service.request().body for _ in range(20)] == [b'{"a":%d}' % number for number in range(20)]
