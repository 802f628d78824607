"""The shim against a bare interpreter, a Node http shim and curl; service up, down and mute; killed early."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

from tests.bench.events import payload
from tests.bench.figures import Figure, ratio
from tests.bench.lab import SHIM, TOKEN, Lab, Start, starts, tool

TITLE = "Shim: milliseconds from start to end of the process"
_BARE = (sys.executable, "-I", "-S", "-E", "-c", "pass")
_MUTE_MS = 200
_NODE = """
const http = require('http'), parts = [];
process.stdin.on('data', (part) => parts.push(part)).on('end', () => {
  const body = Buffer.concat(parts), url = new URL(process.argv[1]);
  const headers = {'content-type': 'application/json', 'content-length': body.length};
  const request = http.request(url, {method: 'POST', headers}, (reply) => {
    const said = [];
    reply.on('data', (part) => said.push(part)).on('end', () => {
      const text = Buffer.concat(said).toString();
      if (reply.statusCode === 200 && text !== '{}') process.stdout.write(text);
      process.exit(0);
    });
  });
  request.on('error', () => process.exit(0)).setTimeout(5000, () => process.exit(0));
  request.end(body);
});
"""


def shim(url: str, *arguments: str) -> tuple[str, ...]:
    """The command as setup registers it, without `sh -c` around."""
    return (sys.executable, "-I", "-S", str(SHIM), url, *arguments)


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    url = lab.app("tiny", "tests.bench.floors:tiny", core=1).url
    small, large = payload(1 << 10), payload(1 << 20)
    others: dict[str, tuple[str, ...]] = {}
    if node := tool("node"):
        others["Node http shim"] = (node, "-e", _NODE, url)
    if curl := tool("curl"):
        others["curl"] = (curl, "-s", "-m", "5", "-H", "content-type: application/json")
        others["curl"] += ("--data-binary", "@-", url)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = f"http://127.0.0.1:{closed.getsockname()[1]}/hook"
    # The backlog accepts; nobody ever reads.
    with socket.create_server(("127.0.0.1", 0), backlog=512) as mute:
        silent = f"http://127.0.0.1:{mute.getsockname()[1]}/hook"
        spent = starts(
            {
                "bare": Start(_BARE),
                "mute": Start(shim(silent, "--timeout", str(_MUTE_MS)), small),
            },
            lab.pick(15, 5),
        )
    with pinned(lab):
        at_1k = starts(
            {
                "bare": Start(_BARE),
                "1 KB": Start(shim(url), small),
                "1 KB, --detach": Start(shim(url, "--detach"), small),
                "1 KB, service down": Start(shim(down), small),
                **{name: Start(command, small) for name, command in others.items()},
            },
            lab.pick(80, 20),
        )
        at_1m = starts(
            {
                "bare": Start(_BARE),
                "1 MB": Start(shim(url), large),
                **{name: Start(command, large) for name, command in others.items()},
            },
            lab.pick(40, 10),
        )
    bare = "python -I -S -E -c pass"
    figures = [_figure("bare interpreter (floor)", at_1k["bare"].elapsed)]
    for name in ("1 KB", "1 KB, --detach", "1 KB, service down"):
        target = "<= 1.15" if name == "1 KB" else ""
        figures.append(_figure(name, at_1k[name].elapsed, bare, at_1k["bare"].elapsed, target))
    figures.append(_figure("1 KB, processor time", at_1k["1 KB"].cpu, bare, at_1k["bare"].cpu, "<= 1.15"))
    figures.append(_figure("1 MB", at_1m["1 MB"].elapsed, bare, at_1m["bare"].elapsed))
    for name in others:
        target = "<= 0.3" if name.startswith("Node") else ""
        figures.append(
            _figure(f"1 KB against {name}", at_1k["1 KB"].elapsed, name, at_1k[name].elapsed, target)
        )
        figures.append(_figure(f"1 MB against {name}", at_1m["1 MB"].elapsed, name, at_1m[name].elapsed))
    late = [value - _MUTE_MS / 1000 for value in spent["mute"].elapsed]
    figures.append(_figure(f"service mute, beyond a deadline of {_MUTE_MS} ms", late))
    return figures + _killed(lab)


def _figure(
    name: str, samples: list[float], floor: str = "", floors: list[float] | None = None, target: str = ""
) -> Figure:
    share = ratio(samples, floors) if floors else None
    return Figure(name, median(samples) * 1000, "ms", floor, share, target)


@contextlib.contextmanager
def pinned(lab: Lab) -> Iterator[None]:
    """This process, and so what it starts, on core 0; what it talks to is on core 1."""
    lab.pin(os.getpid(), 0)
    try:
        yield
    finally:
        if lab.cores:
            os.sched_setaffinity(os.getpid(), lab.cores)


def _killed(lab: Lab) -> list[Figure]:
    """Events delivered when the agent kills the hook's group soon after its start (kimi-code 2.1.0)."""
    rounds = lab.pick(20, 5)
    figures = []
    detached = shlex.join(shim("URL", "--detach"))
    session = f"{tool('setsid')} " if tool("setsid") else ""
    lines = {
        "as registered": f"trap '' TERM; {session}{detached} || exit 0",
        "--detach alone": f"{detached} || exit 0",
        "inline": f"{shlex.join(shim('URL'))} || exit 0",
    }
    for after in (0.005, 0.02):
        for name, line in lines.items():
            with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
                came: list[int] = []
                thread = threading.Thread(target=_count, args=(listener, came))
                thread.start()
                for _ in range(rounds):
                    _kill(line.replace("URL", url), after)
                seen = -1
                while seen < len(came) < rounds:
                    seen = len(came)
                    time.sleep(0.5)
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()
            title = f"killed {after * 1000:.0f} ms after its start, {name}: delivered of {rounds}"
            figures.append(Figure(title, len(came), "events"))
    return figures


def _count(listener: socket.socket, came: list[int]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            if connection.recv(1 << 16).endswith(b"}"):
                came.append(1)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            )


def _kill(line: str, after: float) -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"AEP_TOKEN": TOKEN},
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(payload(1 << 10))
    process.stdin.close()
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
