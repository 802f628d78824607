"""The tee itself: starts the agent, moves bytes, forwards signals, ends as the agent ended.

Each direction has a thread that reads, offers a copy, and writes. The copy goes first, so that a question
is told before its answer, which can be there as soon as the question is written. Nothing is parsed here, so
no line can be long or strange enough to matter.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

from deploy.acp.copies import Copies
from deploy.acp.wire import Kind

GOODBYE_S = 1.0
"""How long the end may wait for what was seen to be delivered, in seconds."""

_CHUNK = 64 * 1024
_PR_SET_PDEATHSIG = 1
_FORWARDED = (
    "SIGTERM",
    "SIGINT",
    "SIGHUP",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGCONT",
    "SIGTSTP",
    "SIGWINCH",
)

Tap = Callable[[Kind, bytes], None]


def run(agent: Sequence[str], observer: Sequence[str]) -> int:
    """Be the agent command `agent` until it ends; `observer` is the command that gets the copies.

    The exit code of the agent, or this process ends by the signal that ended the agent. 127 and 126 as a
    shell has them for a command that is missing or cannot be run. In a terminal there is no editor to
    watch (`kimi acp --login`): the agent takes this process's place.
    """
    try:
        if os.isatty(0) or os.isatty(1):
            os.execvpe(agent[0], list(agent), _environment() or os.environb)
        tee = _Tee(agent, observer)
    except OSError as error:
        print(f"aep-kimi acp: {agent[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    # A pump that wakes up takes the interpreter from the thread that hands out the copies.
    sys.setswitchinterval(0.0002)
    return tee.run()


class _Tee:
    def __init__(self, agent: Sequence[str], observer: Sequence[str]) -> None:
        self._early: list[int] = []
        self._agent: subprocess.Popen[bytes] | None = None
        self._signals_to(self._on_signal)
        self._agent = _start_agent(agent)
        for signum in self._early:
            self._agent.send_signal(signum)
        self._observer = _start_observer(observer)

    def run(self) -> int:
        agent = self._agent
        assert agent is not None
        assert agent.stdin is not None
        assert agent.stdout is not None
        copies = None
        if self._observer is not None and self._observer.stdin is not None:
            copies = Copies(os.dup(self._observer.stdin.fileno()))
            self._observer.stdin.close()
            copies.start()
        tap = _ignore if copies is None else copies.offer
        exited, exiting = os.pipe()
        down = threading.Thread(target=_to_agent, args=(os.dup(agent.stdin.fileno()), tap), daemon=True)
        up = threading.Thread(
            target=_to_client, args=(os.dup(agent.stdout.fileno()), exited, tap), daemon=True
        )
        agent.stdin.close()
        agent.stdout.close()
        waiter = threading.Thread(target=_await_exit, args=(agent, exiting), daemon=True)
        for thread in (down, up, waiter):
            thread.start()
        _serve_signals(exited)
        waiter.join()
        code = agent.returncode
        # With the agent gone, a signal is meant for us again.
        self._signals_to(signal.SIG_DFL)
        # A client that reads slowly gets all of it, as it would from a pipe of the agent's own.
        up.join()
        for fd in (0, 1, 2):
            _detach(fd)
        self._say_goodbye(copies, code)
        return code if code >= 0 else _die_alike(-code)

    def _say_goodbye(self, copies: Copies | None, code: int) -> None:
        if copies is None or self._observer is None:
            return
        until = time.monotonic() + GOODBYE_S
        copies.finish(code, GOODBYE_S)
        with suppress(subprocess.TimeoutExpired):
            self._observer.wait(max(0.0, until - time.monotonic()))
        if self._observer.poll() is None:
            self._observer.kill()
            self._observer.wait()

    def _signals_to(self, handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for name in _FORWARDED:
            signum = getattr(signal, name, None)
            # What the client told us to ignore (nohup), the agent ignores by inheritance.
            if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, handler)

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if self._agent is None:
            self._early.append(signum)
            return
        self._agent.send_signal(signum)
        if signum == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _ignore(_kind: Kind, _chunk: bytes) -> None:
    """The tap of a tee without an observer."""


def _await_exit(agent: subprocess.Popen[bytes], exiting: int) -> None:
    agent.wait()
    os.close(exiting)


def _serve_signals(exited: int) -> None:
    """Until the agent has exited. Without a descriptor, a signal just before a wait is seen only after it."""
    arrived, arriving = os.pipe()
    os.set_blocking(arriving, False)
    signal.set_wakeup_fd(arriving, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(exited, select.POLLIN)
    poll.register(arrived, select.POLLIN)
    while exited not in {fd for fd, _ in poll.poll()}:
        os.read(arrived, 512)
    signal.set_wakeup_fd(-1)


def _start_agent(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a group of its own, so that a signal to the client's group arrives once: through the tee.

    Where the kernel can, the agent does not outlive a killed tee; elsewhere it sees its input end.
    """
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # Descriptors that the client left open for its agent are the agent's.
        close_fds=False,
        process_group=0,
        env=_environment(),
        preexec_fn=_die_with_parent(),
    )


def _start_observer(command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    with suppress(OSError):
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd="/",
        )
    return None


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)

    return arm


def _environment() -> dict[bytes, bytes] | None:
    """None for the environment as it is; a copy without `LC_CTYPE` where Python itself put that there.

    In the C locale an interpreter sets `LC_CTYPE` for its children (PEP 538).
    """
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return None
    try:
        with open("/proc/self/environ", "rb") as first:
            original = first.read().split(b"\0")
    except OSError:
        return None
    if any(entry.startswith(b"LC_CTYPE=") for entry in original):
        return None
    return {key: value for key, value in os.environb.items() if key != b"LC_CTYPE"}


def _to_agent(agent: int, tap: Tap) -> None:
    """Client to agent, until either end closes; the closed end is told on."""
    while chunk := _read(0):
        tap(Kind.TO_AGENT, chunk)
        if not _write(agent, chunk):
            _detach(0)
            break
    os.close(agent)


def _to_client(agent: int, exited: int, tap: Tap) -> None:
    """Agent to client, until the agent closes its output, or has exited and left nothing more.

    A grandchild that holds the output open does not keep us.
    """
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    poll.register(exited, select.POLLIN)
    gone = False
    while True:
        ready = {fd for fd, _ in poll.poll(0 if gone else None)}
        if exited in ready and not gone:
            gone = True
            poll.unregister(exited)
        if agent not in ready:
            if gone and not ready:
                break
            continue
        chunk = _read(agent)
        if not chunk:
            break
        tap(Kind.TO_CLIENT, chunk)
        if not _write(1, chunk):
            break
    os.close(agent)
    _detach(1)


def _read(fd: int) -> bytes:
    """What is there, at least a byte; nothing at the end of the stream."""
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            _await(fd, select.POLLIN)
        except OSError:
            return b""


def _write(fd: int, chunk: bytes) -> bool:
    """Write all of it; False when nobody reads any more."""
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _await(fd, select.POLLOUT)
        except OSError:
            return False
    return True


def _await(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()


def _detach(fd: int) -> None:
    """Let go of a standard stream, so that the other side sees its end; the number stays taken."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)


def _die_alike(signum: int) -> int:
    """End by the agent's signal, without a core of our own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if signum not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    return 128 + signum
