"""`doctor`: finds what is wrong, says what to do, changes nothing."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.setup import cli, files, running, service, trial
from deploy.setup.context import SHIM
from tests.setup.fakes import FakeService, fake_kimi, fake_service
from tests.setup.shapes import FOUND, HOOK, REAL

HERE = "this-machine"


@pytest.fixture
def served() -> Iterator[FakeService]:
    with fake_service() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "config.toml").write_bytes(REAL)
    (folder / "config.toml").chmod(0o600)
    return folder


@pytest.fixture
def env(home: Path, tmp_path: Path, served: FakeService) -> dict[str, str]:
    kimi = fake_kimi(tmp_path / "npm", "2.1.0")
    return {
        "PATH": f"{kimi.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(tmp_path),
        "KIMI_CODE_HOME": str(home),
        "AEP_URL": served.url,
        "AEP_EMITTER": HERE,
    }


def doctor(env: dict[str, str], capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Exit code and the lines of what is wrong; nothing may change in the home."""
    home = Path(env["KIMI_CODE_HOME"])
    before = {p: (p.read_bytes(), os.stat(p).st_mtime_ns) for p in home.rglob("*") if p.is_file()}
    capsys.readouterr()
    code = cli.main(["doctor", "kimi-code", *words], env)
    said = capsys.readouterr().out.splitlines()
    assert {p: (p.read_bytes(), os.stat(p).st_mtime_ns) for p in home.rglob("*") if p.is_file()} == before
    wrong = [line for line in said if line.startswith("WRONG ")]
    assert code == (1 if wrong else 0), said
    assert all("; " in line or " so " in line or ", or " in line for line in wrong), wrong
    return code, wrong or said


def write(env: dict[str, str], *words: str) -> None:
    assert cli.main(["write", "kimi-code", *words], env) == 0


def event(kind: str, at: str, emitter: str = HERE, agent: str = "kimi-code") -> dict[str, object]:
    return {"type": kind, "time": at, "source": f"aep://{emitter}/agent/{agent}/session/s"}


def test_a_sound_machine(
    env: dict[str, str], served: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env)
    served.events(
        event("run.started", "2026-11-30T10:00:00.000Z"),
        event("run.started", "2026-11-30T12:00:00.000Z"),
        event("run.started", "2026-11-30T11:00:00.000Z"),
        event("tool.requested", "2026-11-30T13:00:00.000Z", "other"),
        event("run.finished", "2026-11-30T14:00:00.000Z", agent="acp"),
    )
    code, said = doctor(env, capsys)
    assert code == 0
    text = "\n".join(said)
    assert "@moonshot-ai/kimi-code 2.1.0" in text
    assert "agent-core-v2, accepts 20 hook events" in text
    assert "20 entries, as Kimi Code wants them" in text
    assert "Kimi Code itself accepts the file" in text
    assert "ok    command: delivers an event" in text
    assert "ok    command, detached: delivers an event" in text
    assert "(IPv4) answers" in text
    assert "ok    token: none is needed" in text
    assert [line for line in said if "last event" in line] == [
        "ok    last event: run.started at 2026-11-30T12:00:00.000Z"
    ]
    assert said[-1] == "nothing is wrong"


def test_no_event_yet(env: dict[str, str], served: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    write(env)
    served.events(event("run.started", "2026-11-30T10:00:00.000Z", "other"))
    _, said = doctor(env, capsys)
    assert (
        f"note  last event: none from {HERE} yet (there are events from other); send a prompt"
        in "\n".join(said)
    )


def test_a_token_that_speaks_for_another_name(
    env: dict[str, str], served: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a shared service the emitter is that of the token, whatever this machine is called."""
    write(env)
    served.events(event("run.started", "2026-11-30T10:00:00.000Z", "anna"))
    del env["AEP_EMITTER"]
    _, said = doctor(env | {"AEP_TOKEN": "the-token-of-anna"}, capsys)
    assert "ok    last event: run.started at 2026-11-30T10:00:00.000Z" in said
    served.events(
        event("run.started", "2026-11-30T10:00:00.000Z", "anna"),
        event("run.started", "2026-11-30T11:00:00.000Z", "ben"),
    )
    _, said = doctor(env | {"AEP_TOKEN": "the-token-of-all"}, capsys)
    assert "yet (there are events from anna, ben)" in "\n".join(said)


def test_nothing_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    env = {"PATH": "", "KIMI_CODE_HOME": str(tmp_path / "none"), "AEP_URL": f"http://127.0.0.1:{port}"}
    _, wrong = doctor(env, capsys)
    assert [line.split(": ")[0] for line in wrong] == [
        "WRONG kimi",
        "WRONG home",
        "WRONG config",
        "WRONG service",
    ]


def test_another_kimi(env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(env)
    other = fake_kimi(tmp_path / "other", "2.1.0", package="kimi-code")
    _, wrong = doctor(env, capsys, "--kimi", str(other), "--vendor-version", "2.1.0")
    assert len(wrong) == 1
    assert "belongs to `kimi-code`, which is not Moonshot AI's; install @moonshot-ai/kimi-code" in wrong[0]


def test_flags_and_other_homes(
    env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env, "--vendor-version", "0.33.0")
    (tmp_path / ".kimi").mkdir()
    (tmp_path / ".kimi" / "config.json").touch()
    _, wrong = doctor(env | {"KIMI_CODE_LEGACY_FLAG": "1"}, capsys, "--vendor-version", "0.33.0")
    assert "events that this Kimi Code may not accept: UserPromptQueued, TurnStarted" in "".join(wrong)
    assert "hooks[16] has the event 'UserPromptQueued', which this Kimi Code does not know" in "".join(wrong)
    cli.main(["doctor", "kimi-code"], env | {"KIMI_CODE_LEGACY_FLAG": "1"})
    said = capsys.readouterr().out
    assert "(KIMI_CODE_LEGACY_FLAG=1)" in said
    assert f"another one has a config: {tmp_path / '.kimi'} (of the older kimi-cli" in said


def test_a_foreign_entry_that_disables_all(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env)
    config = home / "config.toml"
    config.write_bytes(config.read_bytes() + HOOK.replace(b"Stop", b"REFUSED") + b'description = "x"\n')
    _, wrong = doctor(env, capsys)
    text = "\n".join(wrong)
    assert (
        "hooks[20] has the unknown event 'REFUSED'; correct or remove this entry; until then no hook" in text
    )
    assert "hooks[20] has the key `description`" in text
    assert "Kimi Code refuses the file (hooks[0].event: Invalid option)" in text


def test_a_file_that_kimi_code_cannot_read(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_bytes(b"\xef\xbb\xbf" + REAL + b"[big]\nnumber = 9223372036854775807\n")
    write(env)
    _, wrong = doctor(env, capsys)
    text = "\n".join(wrong)
    assert "byte order mark, which Kimi Code cannot read" in text
    assert "line 19: `big` holds an integer above 2^53" in text


def test_a_file_that_is_not_toml(env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config.toml").write_bytes(b'a = "x\n')
    _, wrong = doctor(env, capsys)
    assert "line 1: a string opens here and is never closed; close it" in wrong[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("the end marker lost", "it is not whole; run `aep-setup write kimi-code --refence`"),
        ("another address, interpreter and shim", "interpreter: /old/python instead of"),
        ("a timeout edited by hand", "interpreter: /opt/aep kimi/bin/python instead of"),
    ],
)
def test_the_state_of_the_fence(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    (home / "config.toml").write_bytes(FOUND[name].data)
    _, wrong = doctor(env, capsys)
    assert words in "\n".join(wrong)
    assert "cannot be run; run `aep-setup write kimi-code` with the Python of aep-kimi" in "\n".join(wrong)


def test_another_observer(env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = home / "config.toml"
    config.write_bytes(HOOK.replace(b"say done", b"node /x/kimi-hook.js"))
    write(env, "--beside")
    _, wrong = doctor(env, capsys)
    assert wrong == [
        "WRONG fence: line 1: node /x/kimi-hook.js sees every event too, so remove one of the two"
    ]


def test_a_broken_command(
    env: dict[str, str],
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "WAIT_S", 0.1)
    write(env)
    shim = tmp_path / "kimi_hook.py"
    shim.write_text("print('{}')\n")
    config = home / "config.toml"
    config.write_bytes(config.read_bytes().replace(str(SHIM).encode(), str(shim).encode()))
    _, wrong = doctor(env, capsys)
    assert "WRONG command: it exits with 0 and prints b'{}\\n'; update aep-kimi" in wrong
    shim.write_text("import time; time.sleep(20)\n")
    config.write_bytes(config.read_bytes().replace(b"timeout = 10", b"timeout = 1"))
    _, wrong = doctor(env, capsys)
    assert "WRONG command: it runs longer than its 1 s; update aep-kimi" in wrong
    shim.write_text("raise SystemExit('no network')\n")
    config.write_bytes(config.read_bytes().replace(b"timeout = 1\n", b"timeout = 60\n"))
    _, wrong = doctor(env, capsys)
    assert any("command: it delivers no event (no network)" in line for line in wrong)


def test_a_service_that_wants_a_token(
    env: dict[str, str], served: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served.token = "right"
    token = tmp_path / "token"
    write(env)
    _, wrong = doctor(env, capsys)
    assert (
        "it wants a token; put one in a file and run `aep-setup write kimi-code --token-file FILE`"
        in wrong[0]
    )
    token.write_text("wrong\n")
    write(env, "--token-file", str(token))
    _, wrong = doctor(env, capsys)
    assert "the token is not accepted; put the right one in the token file" in wrong[0]
    token.write_text("right\n")
    assert doctor(env, capsys)[0] == 0
    served.watch = False
    assert doctor(env, capsys)[0] == 0
    token.unlink()
    _, wrong = doctor(env, capsys)
    assert all("cannot be read (no such file or directory)" in line for line in wrong)


def test_a_service_that_is_not_well(
    env: dict[str, str], served: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env)
    served.ok = False
    _, wrong = doctor(env, capsys)
    assert "runs but is not well" in wrong[0]
    assert "look at its log and its Redis" in wrong[0]


def test_a_certificate_that_is_not_trusted(
    env: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tuple[int, bytes]:
        raise ssl.SSLCertVerificationError(
            1, "certificate verify failed: unable to get local issuer certificate"
        )

    monkeypatch.setattr(service, "_get", refuse)
    code, wrong = doctor(env, capsys)
    assert code == 1
    assert any("have this machine trust its certificate's authority" in line for line in wrong)
    assert not any("start it" in line for line in wrong)


def test_another_service_on_the_port(
    env: dict[str, str], served: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env)
    _, wrong = doctor(env, capsys, "--url", f"{served.url}/elsewhere")
    assert any("is something else (status 404); correct --url" in line for line in wrong)


def test_each_address_of_the_name_is_tried(
    env: dict[str, str],
    served: FakeService,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = served.server_address[1]

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    write(env, "--url", f"http://localhost:{port}")
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolve)
        assert service.addresses(f"http://localhost:{port}") == [("::1", "IPv6"), ("127.0.0.1", "IPv4")]
    answers = [service.get(served.url, a, f, "/healthz") for a, f in (("::1", "IPv6"), ("127.0.0.1", "IPv4"))]
    assert [service.healthy(a) for a in answers] == [False, True]
    assert answers[0].error


def test_a_name_without_an_address(env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, wrong = doctor(env, capsys, "--url", "http://no-such-host.invalid")
    assert any("has no address" in line and "correct --url or your DNS" in line for line in wrong)


def test_a_session_from_before_the_hooks(
    env: dict[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env)
    instances = home / "server" / "instances"
    instances.mkdir(parents=True)
    began = datetime.now(UTC) - timedelta(hours=1)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (instances / "01.json").write_text(
            json.dumps({"pid": process.pid, "started_at": int(began.timestamp() * 1000), "port": 1})
        )
        _, wrong = doctor(env, capsys)
        assert len(wrong) == 1
        assert f"kimi web (process {process.pid}) runs since" in wrong[0]
        assert "restart it, or type /reload in it" in wrong[0]
    finally:
        process.kill()
        process.wait(10)
    assert doctor(env, capsys)[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_program_is_found_by_its_name_and_home(tmp_path: Path) -> None:
    main = tmp_path / "node_modules" / "@moonshot-ai" / "kimi-code" / "dist" / "main.mjs"
    main.parent.mkdir(parents=True)
    main.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, str(main)], env={"KIMI_CODE_HOME": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        process.stdout.readline()
        found = running.programs(tmp_path)
        assert [(p.pid, p.what) for p in found] == [(process.pid, "kimi")]
        assert abs(found[0].since.timestamp() - time.time()) < 300
        assert running.programs(tmp_path / "other") == []
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize(
    ("text", "seconds"), [("05", 5), ("01:05", 65), ("02:01:05", 7265), ("3-02:01:05", 266465), ("?", 0)]
)
def test_the_age_of_a_process(text: str, seconds: int) -> None:
    assert running.elapsed(text).total_seconds() == seconds


def test_the_last_backup_tells_when_the_hooks_changed(env: dict[str, str], home: Path) -> None:
    assert files.last_backup(home / "config.toml") is None
    write(env)
    made = files.last_backup(home / "config.toml")
    assert made is not None
    assert abs((datetime.now(UTC) - made).total_seconds()) < 300
