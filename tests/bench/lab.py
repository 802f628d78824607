"""The benches that the sections work at: servers, their processor time, timed starts of programs."""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.figures import Missing, quantile

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "deploy" / "shim" / "kimi_hook.py"
TOKEN = "bench-token-bench-token-bench-token"
_READY_SECONDS = 20.0
_REDIS = "{} --port 0 --unixsocket {} --dir {} --appendonly yes --appendfsync everysec"


def processor(pid: int) -> float:
    """Processor seconds of a process, in steps of 10 ms; raises Missing where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise Missing("processor time is read from /proc") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server process of ours."""

    name: str
    process: subprocess.Popen[bytes]
    port: int = 0
    url: str = ""

    def cpu(self) -> float:
        """Processor seconds it has used; see `processor`."""
        return processor(self.process.pid)

    def memory(self) -> int:
        """Resident bytes."""
        try:
            fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        except FileNotFoundError:
            raise Missing("memory is read from /proc") from None
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Lab:
    """Starts what a section asks for, and ends all of it with the section."""

    def __init__(self, short: bool) -> None:
        self.short = short
        self._stack = ExitStack()
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def __enter__(self) -> Lab:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pick(self, full: int, short: int) -> int:
        """A number of rounds."""
        return short if self.short else full

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        core: int = 0,
    ) -> subprocess.Popen[bytes]:
        """A process on a core of its own where there are several: the service on 0, what loads it on 1."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("AEP_")}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables | dict(environment or {}),
                cwd=ROOT,
            )
        self._stack.callback(Server(name, process).stop)
        self.pin(process.pid, core)
        return process

    def pin(self, pid: int, core: int) -> None:
        """Keep a process on one core, counted round."""
        if len(self.cores) > 1:
            os.sched_setaffinity(pid, {self.cores[core % len(self.cores)]})

    def redis(self, name: str = "redis", core: int = 1) -> Server:
        """A Redis-compatible server with an append-only log, on a unix socket."""
        from state.embedded import find

        binary = find()
        if binary is None:
            raise Missing("no Valkey or Redis program was found")
        path = self.directory / f"{name}.sock"
        data = self.directory / name
        data.mkdir()
        process = self.start(
            name,
            (*_REDIS.format(binary.path, path, data).split(), "--save", ""),
            core=core,
        )
        _until(path.exists, f"{binary} does not start")
        return Server(str(binary), process, url=f"unix://{path}")

    def app(
        self, name: str, target: str, environment: Mapping[str, str] | None = None, core: int = 0
    ) -> Server:
        """An ASGI application under uvicorn, as the service runs."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        process = self.start(
            name,
            (sys.executable, "-m", "tests.bench.serve", target, str(port)),
            environment=environment,
            core=core,
        )
        server = Server(name, process, port, f"http://127.0.0.1:{port}/hook")
        log = self.directory / f"{name}.log"
        try:
            _until(lambda: _listens(port), f"{target} does not start")
        except Missing as problem:
            raise Missing(f"{problem}: {log.read_text()[-300:].strip()}") from None
        return server

    def service(
        self, name: str, redis: Server, *, core: int = 0, settings: Mapping[str, str] | None = None
    ) -> Server:
        """The product, with a token, on this Redis; raises Missing while it does not answer."""
        environment = {"AEP_REDIS_URL": redis.url, "AEP_TOKEN": TOKEN, "AEP_EMITTER": "bench"}
        # A busy machine must not void a section; losses are the business of other tests.
        environment["AEP_HOOK_TIMEOUT_MS"] = "10000"
        server = self.app(name, "handlers.app:app", environment | dict(settings or {}), core)
        ready = "an error"
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            ready = post(server, b'{"hook_event_name":"Notification","session_id":"first"}')
            if ready == "yes":
                return server
            time.sleep(0.1)
        raise Missing(f"the service does not store events yet ({ready})")

    def load(self, *servers: Server, **wanted: Any) -> dict[str, Any]:
        """Run the load client; see `tests.bench.load` for what it takes and gives."""
        wanted = {"ports": [server.port for server in servers], "token": TOKEN} | wanted
        command = [sys.executable, "-m", "tests.bench.load", json.dumps(wanted)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self.pin(process.pid, 1)
        output, _ = process.communicate()
        if process.returncode:
            raise Missing("the load client failed")
        result: dict[str, Any] = json.loads(output)
        return result


def post(server: Server, body: bytes, path: str = "/hook") -> str:
    """Post one event; what became of it by the answer's own account."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        return response.getheader("AEP-Stored") or f"{response.status} {text}"
    finally:
        connection.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Missing(problem)
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start, with `input` on its standard input."""

    command: tuple[str, ...]
    input: bytes = b""


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds from start to end of each run of a program, and processor seconds it took."""

    elapsed: list[float]
    cpu: list[float]


def starts(programs: Mapping[str, Start], rounds: int) -> dict[str, Samples]:
    """Start each program in turns, its output to nowhere."""
    samples = {name: Samples([], []) for name in programs}
    variables = {k: v for k, v in os.environ.items() if k != "AEP_TOKEN"} | {"AEP_TOKEN": TOKEN}
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        files = {}
        for name, program in programs.items():
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(program.input)
            file.flush()
            files[name] = file.fileno()
        for turn in range(rounds + 1):
            for name, program in programs.items():
                os.lseek(files[name], 0, os.SEEK_SET)
                streams = [(os.POSIX_SPAWN_DUP2, files[name], 0), (os.POSIX_SPAWN_DUP2, null, 1)]
                began = time.perf_counter()
                pid = os.posix_spawn(program.command[0], program.command, variables, file_actions=streams)
                _, _, usage = os.wait4(pid, 0)
                took = time.perf_counter() - began
                if turn:
                    samples[name].elapsed.append(took)
                    samples[name].cpu.append(usage.ru_utime + usage.ru_stime)
    return samples


def machine() -> dict[str, object]:
    """Where this runs, and how still it is: the spread of a fixed piece of work."""
    spins = []
    for _ in range(40):
        began = time.perf_counter()
        sum(range(100_000))
        spins.append(time.perf_counter() - began)
    spread = (quantile(spins, 0.9) - quantile(spins, 0.1)) / median(spins)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
        "noise": f"{spread:.0%} between the 10th and 90th percentile of a fixed piece of work",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def tool(name: str) -> str | None:
    """The path of another program to compare with, if it is there."""
    return shutil.which(name)
