"""The command line: what it sends, what it says to a person, and how little it loads."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shim.service import PATIENCE, Service, assert_silent, command, ok, say, shim

EVENT = '{"hook_event_name":"Stop","prompt":"Grüße \\"}\\\\\\" ✓ [{"}'.encode()


def test_it_posts_the_event_unchanged() -> None:
    with Service() as service:
        assert_silent(shim(service.url, event=EVENT))
        request = service.request()
    assert request.body == EVENT
    assert request.head.split("\r\n") == [
        "POST /hook HTTP/1.1",
        f"Host: 127.0.0.1:{service.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(EVENT)}",
        "Connection: close",
    ]


@pytest.mark.parametrize("size", [1 << 20, 20 << 20])
def test_large_events_pass(size: int) -> None:
    event = b'{"prompt":"' + b"QUJD" * (size // 4) + b'"}'
    with Service() as service:
        assert_silent(shim(service.url, event=event))
        assert service.request().body == event


def test_an_event_beyond_all_sense_is_drained_and_dropped() -> None:
    with Service() as service:
        assert_silent(shim(service.url, event=b'{"prompt":"' + b"x" * (65 << 20) + b'"}'))
        assert service.requests.empty()


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"  ",
        b"null",
        b"[1]",
        b'{"a":{"b":1}',
        b'{"a":"}',
        b'{"a":"\\"}',
        b'{"a":[}',
        b"\xff{}",
        b'{"a":"b',
    ],
)
def test_what_is_no_whole_object_is_not_posted(event: bytes) -> None:
    with Service() as service:
        assert_silent(shim(service.url, event=event))
        assert service.requests.empty()


def test_no_proper_prefix_of_an_event_is_posted() -> None:
    event = b'{"a":"\\\\\\"}{[","b":[{}],"c":{"d":"}"}}'
    sys.path.insert(0, str(Path(command()[3]).parent))
    try:
        import exchange  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    assert [size for size in range(len(event) + 1) if exchange.whole(event[:size])] == [len(event)]


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    with Service() as service:
        shim(service.url, "--token-file", str(file), environment={"AEP_TOKEN": "from-environment"})
        assert "\r\nAuthorization: Bearer from-file" in service.request().head
        shim(service.url, environment={"AEP_TOKEN": "from-environment"})
        assert "\r\nAuthorization: Bearer from-environment" in service.request().head
        shim(service.url, environment={"AEP_TOKEN": ""})
        assert "Authorization" not in service.request().head


def test_a_token_that_cannot_be_read_or_sent_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with Service() as service:
        assert_silent(shim(service.url, "--token-file", str(file)))
        for token in (b"a\r\nX: y", b"\xff\xfe", "schlüssel".encode()):
            file.write_bytes(token)
            assert_silent(shim(service.url, "--token-file", str(file)))
        assert service.requests.empty()


@pytest.mark.parametrize("path", ["", "/", "/hook?session=1", "/a/b#c", "?q=1"])
def test_the_path_is_kept(path: str) -> None:
    with Service() as service:
        shim(service.url.removesuffix("/hook") + path)
        wanted = path.partition("#")[0]
        wanted = wanted if wanted.startswith("/") else "/" + wanted
        assert service.request().head.startswith(f"POST {wanted} HTTP/1.1\r\n")


def test_names_and_both_families_are_reached() -> None:
    with Service() as service:
        shim(f"http://localhost:{service.port}/hook")
        assert f"Host: localhost:{service.port}\r\n" in service.request().head
        shim(f"http://{socket.gethostname()}.invalid:{service.port}/hook", "--timeout", "2000")
        assert service.requests.empty()
    try:
        six = Service(family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with six as service:
        shim(service.url)
        assert f"Host: [::1]:{service.port}\r\n" in service.request().head
        shim(f"http://localhost:{service.port}/hook")
        assert service.request().body


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["URL", "URL"],
        ["URL", "--retries", "3"],
        ["URL", "--timeout"],
        ["URL", "--timeout", "0"],
        ["URL", "--timeout", "600001"],
        ["URL", "--timeout", "9999999999999"],
        ["URL", "--timeout", "1.5"],
        ["URL", "--timeout", "٣"],
        ["URL", "--token-file"],
        ["ftp://127.0.0.1/hook"],
        ["127.0.0.1:8398/hook"],
        ["http:///hook"],
        ["http://127.0.0.1:x/hook"],
        ["http://user@127.0.0.1/hook"],
        ["http://127.0.0.1/a b"],
        ["http://127.0.0.1/\r\nX: y"],
    ],
)
def test_bad_usage_is_silent_for_the_agent(arguments: list[str]) -> None:
    with Service() as service:
        assert_silent(shim(*(service.url if word == "URL" else word for word in arguments)))
        assert service.requests.empty()


def test_bad_usage_is_told_to_a_person() -> None:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        command("nonsense"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=PATIENCE,
    )
    os.close(terminal)
    told = os.read(controller, 4096).decode()
    os.close(controller)
    assert (done.returncode, done.stdout) == (0, b"")
    assert "URL must look like" in told
    assert "usage: kimi-hook URL" in told


def test_help_states_the_default_timeout() -> None:
    done = shim("--help")
    assert done.returncode == 0
    assert b"default 5000" in done.stdout


def test_nothing_of_the_standard_library_is_loaded() -> None:
    with Service() as service:
        event = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "importtime", *command(service.url)[3:]],
            input=EVENT,
            capture_output=True,
            timeout=PATIENCE,
        )
        bare = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "importtime", "-c", "pass"],
            capture_output=True,
            timeout=PATIENCE,
        )
        assert service.request().body == EVENT

    def names(printed: bytes) -> set[str]:
        return {line.rpartition("|")[2].strip() for line in printed.decode().splitlines()}

    assert names(event.stderr) - names(bare.stderr) <= {"_socket"}


def test_the_console_script_is_the_same_command() -> None:
    script = Path(sys.executable).parent / "kimi-hook"
    if not script.exists():
        pytest.skip("the package is not installed beside this interpreter")
    with Service(say(ok(b'{"message":"m"}'))) as service:
        done = subprocess.run([script, service.url], input=EVENT, capture_output=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout, done.stderr) == (0, b'{"message":"m"}', b"")
        assert service.request().body == EVENT


def test_https_is_a_second_transport(tmp_path: Path) -> None:
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl command to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout '{key}' -out '{certificate}'",
        shell=True,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    with Service(say(ok(b'{"message":"m"}'))) as service:
        service.wrap = lambda connection: context.wrap_socket(connection, server_side=True)
        url = f"https://localhost:{service.port}/hook"
        assert_silent(shim(url, event=EVENT))
        assert service.requests.empty()
        done = shim(url, event=EVENT, environment={"SSL_CERT_FILE": str(certificate)})
        assert (done.returncode, done.stdout, done.stderr) == (0, b'{"message":"m"}', b"")
        assert service.request().body == EVENT
