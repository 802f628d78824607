"""Follows the host guide by copy and paste on a copy of this machine, and looks at the result from outside.

`python machine.py GUIDE REPOSITORY` must be the first process of mount and process namespaces of its own. The
root file system is laid over with one in memory, so that every path is the real one and nothing is left. What
needs the package registries runs first; the rest runs in a network namespace without any other machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

NAME = "aep.team.test"
TOOLS = "/usr/local/lib/aep-guide"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/usr/local/lib/aep-guide-home"
AUTHORITY = "/usr/local/share/ca-certificates/aep-kimi.crt"


def blocks(guide: str) -> tuple[list[str], list[str], list[str]]:
    """The shell blocks of the host guide: for the host, for a user's machine, for later."""
    section = guide.split("## One host, step by step")[1].split("\n## ")[0]
    first, later = section.split("### Later")
    host, user = first.split("On each user's machine")
    return tuple(re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for part in (host, user, later))  # type: ignore[return-value]


def run(*command: str, **more: object) -> None:
    """Run it, or stop everything."""
    subprocess.run(command, check=True, **more)  # type: ignore[call-overload]


def paste(script: str, directory: str = "/") -> str:
    """What a shell prints for `script`; a line that fails stops everything."""
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": f"{TOOLS}:{PATH}", "HOME": HOME},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    assert done.returncode == 0, f"the guide ended with {done.returncode} in:\n{script}"
    return done.stdout


def lay(repository: str) -> None:
    """A root of our own over the real one, with tools that stand in for those of another machine.

    Nothing is ever deleted here: what must be empty gets an empty file system, what is kept is read-only.
    """
    assert os.getpid() == 1, "this is not a process namespace of its own"
    run("mount", "--make-rprivate", "/")
    memory = tempfile.mkdtemp()
    run("mount", "-t", "tmpfs", "tmpfs", memory)
    root = f"{memory}/root"
    for name in ("upper", "work", "root"):
        os.mkdir(f"{memory}/{name}")
    layers = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, root)
    run("mount", "-t", "proc", "proc", f"{root}/proc")
    run("mount", "--rbind", "/dev", f"{root}/dev")
    for empty in ("/run", "/var/lib/redis"):
        run("mount", "-t", "tmpfs", "tmpfs", root + empty)
    for kept in (repository, sys.base_prefix, sys.prefix):
        run("mount", "--bind", kept, root + kept)
        run("mount", "-o", "remount,bind,ro", root + kept)
    real = os.stat("/").st_dev
    os.chroot(root)
    os.chdir("/")
    assert os.stat("/").st_dev != real, "this is the real root"
    shutil.chown("/var/lib/redis", "redis", "redis")
    os.makedirs(HOME, 0o700)
    os.makedirs(TOOLS)
    units = Path(__file__).with_name("units.py")
    for name, text in {
        "apt-get": "exit 0",
        "make": "exit 0",
        "systemctl": f'exec {sys.executable} {units} "$@"',
    }.items():
        tool = Path(TOOLS, name)
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)


def source(repository: str) -> str:
    """A repository to clone: the files as they lie there, committed or not."""
    copy = tempfile.mkdtemp()
    git = ["git", "-c", "safe.directory=*", "-c", "user.name=guide", "-c", "user.email=guide@example.org"]
    listed = subprocess.run(
        [*git, "-C", repository, "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if os.path.isfile(f"{repository}/{name}"):
            os.makedirs(os.path.dirname(f"{copy}/{name}"), exist_ok=True)
            shutil.copy2(f"{repository}/{name}", f"{copy}/{name}")
    run("git", "init", "-q", "-b", "main", copy)
    run(*git, "-C", copy, "add", "-A")
    run(*git, "-C", copy, "commit", "-q", "-m", "as it is")
    return copy


def loopback_up() -> None:
    """Set the flag that `ip link set lo up` sets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))


class User:
    """Somebody with a token, outside."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.trust = ssl.create_default_context(cafile=AUTHORITY)

    def ask(self, path: str, payload: object = None) -> tuple[int, str, str]:
        """Status, body and `AEP-Stored`."""
        body = None if payload is None else json.dumps(payload).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"https://{NAME}{path}", body, headers if self.token else {})
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.trust) as answer:
                return answer.status, answer.read().decode(), answer.headers.get("aep-stored", "")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), ""

    def hook(self, session: str, **more: object) -> str:
        """Hand in an event; `AEP-Stored`, or the status where there is none."""
        payload = {"hook_event_name": "UserPromptSubmit", "session_id": session, "prompt": "go", **more}
        status, _, stored = self.ask("/hook", payload)
        return stored or str(status)

    def events(self) -> list[str]:
        """The events that it may see, as they are sent."""
        status, body, _ = self.ask("/stream?from=all&live=0")
        assert status == 200, body
        return sorted(line for line in body.splitlines() if line.startswith("data: "))


def until(holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def check(ada: User, grace: User, user: list[str], later: list[str]) -> None:
    """Everything that two users of such a deployment rely on."""
    assert ada.ask("/readyz")[0] == 200
    assert User("").ask("/stream?from=all&live=0")[0] == 401
    for one in (ada, grace):
        assert one.hook("s1") == "yes"
    for one, emitter in ((ada, "ada"), (grace, "grace")):
        sources = {json.loads(line[6:])["source"] for line in one.events()}
        assert sources == {f"aep://{emitter}/agent/kimi-code/session/s1"}
    check_live(ada)
    check_user(ada, user)
    check_replicas(ada, later)
    before = ada.events(), grace.events()
    paste("systemctl restart redis-server aep-kimi@1 aep-kimi@2 caddy")
    until(lambda: _ready(ada), "it is not back after a restart of everything")
    assert (ada.events(), grace.events()) == before
    listed = paste("AEP_TOKENS_FILE=/etc/aep-kimi/tokens /opt/aep-kimi/.venv/bin/aep-kimi token list")
    [identity] = re.findall(r"(?m)^(\w+)\s+grace\b", listed)
    paste(f"AEP_TOKENS_FILE=/etc/aep-kimi/tokens /opt/aep-kimi/.venv/bin/aep-kimi token revoke {identity}")
    until(lambda: grace.hook("s1") == "401", "a revoked token is still let in")
    assert ada.hook("s1") == "yes"


def _ready(user: User) -> bool:
    try:
        return user.ask("/readyz")[0] == 200
    except OSError:
        return False


def check_live(user: User) -> None:
    """Server-sent events by curl and a WebSocket, both through TLS."""
    from websockets.sync.client import connect

    bearer = f"Authorization: Bearer {user.token}"
    url = f"https://{NAME}/stream"
    curl = subprocess.Popen(
        ["curl", "-sS", "-N", "--max-time", "30", "--cacert", AUTHORITY, "-H", bearer, url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert curl.stdout is not None
    assert curl.stdout.readline() == ": connected\n"
    headers = {"Authorization": f"Bearer {user.token}"}
    with connect(f"wss://{NAME}/socket", ssl=user.trust, additional_headers=headers) as ws:
        hello = {"type": "hello", "versions": ["0.1"], "role": "consumer", "identity": {"name": "guide"}}
        ws.send(json.dumps(hello))
        assert json.loads(ws.recv(20))["type"] == "hello"
        ws.send(json.dumps({"type": "subscribe", "id": "1", "filter": {}}))
        assert json.loads(ws.recv(20))["type"] == "subscribed"
        assert user.hook("live") == "yes"
        assert json.loads(ws.recv(20))["session"] == "live"
    line = next(line for line in curl.stdout if line.startswith("data: "))
    assert json.loads(line[6:])["session"] == "live"
    curl.kill()
    curl.wait()


def check_user(user: User, scripts: list[str]) -> None:
    """The part of the guide for a user's machine, which this one is, too."""
    setup, use = scripts
    setup = setup.replace("aep.example.org", NAME).replace("/dev/stdin", f"{HOME}/pasted")
    Path(HOME, "pasted").write_text(user.token + "\n")
    write, doctor, tail = use.strip().splitlines()
    paste(f"{setup}\n{write}", "/opt/aep-kimi")
    # Without the agent on this machine one line of the doctor is a finding, and so is its exit code.
    told = paste(f"NAME={NAME}\n{doctor} || true", "/opt/aep-kimi")
    for good in ("command: delivers an event", "service: ", "token: accepted"):
        assert re.search(rf"(?m)^ok +{re.escape(good)}|^ok +command, detached: delivers", told), good
    [hook] = set(re.findall(r'(?m)^event = "SessionStart"\ncommand = "(.*)"$', _config()))
    payload = '{"hook_event_name":"SessionStart","session_id":"shim","source":"startup"}'
    paste(f"echo '{payload}' | {hook}")
    assert any('"session":"shim"' in line for line in user.events())
    seen = paste(
        f"NAME={NAME}\n(sleep 3; echo '{payload}' | {hook}) & {{ timeout 8 env {tail} || true; }}",
        "/opt/aep-kimi",
    )
    assert "session.started" in seen


def _config() -> str:
    return Path(HOME, ".kimi-code/config.toml").read_text()


def received(user: User, replica: int) -> int:
    """How many hooks a replica has taken."""
    request = urllib.request.Request(f"http://127.0.0.1{replica}:8398/healthz")
    request.add_header("Authorization", f"Bearer {user.token}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        counters = json.load(answer)["counters"]
    return int(counters.get("hooks.received", 0))


def check_replicas(user: User, later: list[str]) -> None:
    """One may die, and one after the other may be restarted: no hook is lost."""
    assert [user.hook("whole") for _ in range(20)] == ["yes"] * 20
    assert all(received(user, replica) > 5 for replica in (1, 2)), "one replica gets all of the work"
    paste("systemctl kill -s KILL aep-kimi@1")
    time.sleep(0.5)  # what it had in hand is lost, so nothing is
    assert [user.hook("half") for _ in range(20)] == ["yes"] * 20
    paste("systemctl start aep-kimi@1")
    answers: list[str] = []
    ended = threading.Event()

    def post() -> None:
        while not ended.is_set():
            answers.append(user.hook("upgrade"))
            time.sleep(0.02)

    poster = threading.Thread(target=post)
    poster.start()
    [upgrade] = later
    # The package registries are out of reach from here on.
    paste("\n".join(line for line in upgrade.splitlines() if "/bin/pip install" not in line))
    ended.set()
    poster.join()
    assert set(answers) == {"yes"}
    assert len(answers) > 10


def first(guide: str, repository: str) -> None:
    """Before the network goes away."""
    lay(repository)
    say, packages, service = blocks(guide)[0][:3]
    assert [line.partition("=")[0] for line in say.splitlines()] == ["NAME", "SOURCE"]
    paste(f"NAME={NAME}\nSOURCE={source(repository)}\n{packages}{service}")


def second(guide: str) -> None:
    """Without any other machine."""
    loopback_up()
    # The proxy's unit has a capability for it, which nobody hands on here.
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    hosts = Path("/etc/hosts")
    hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {NAME}\n")
    host, user, later = blocks(guide)
    # What Debian's packages do when they are installed.
    paste("systemctl start redis-server")
    script = f"NAME={NAME}\n" + "".join(host[3:])
    # No public authority gives a certificate to this name.
    script = re.sub(r"(?m)^curl -fsS --retry.*\n", "", script, count=1)
    tokens = re.findall(r"(?m)^aep_\S+$", paste(script))
    assert len(tokens) == 2
    check(User(tokens[0]), User(tokens[1]), user, later)
    print("the guide holds", flush=True)


if __name__ == "__main__":
    path, where = sys.argv[1:3]
    text = Path(path).read_text()
    if "--second" in sys.argv:
        try:
            second(text)
        finally:
            for log in sorted(Path("/run/units").glob("*.log")):
                print(
                    f"--- {log.name}",
                    *log.read_text(errors="replace").splitlines()[-15:],
                    sep="\n",
                    flush=True,
                )
    else:
        first(text, where)
        run("unshare", "--net", sys.executable, __file__, path, where, "--second")
