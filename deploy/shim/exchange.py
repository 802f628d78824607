"""The work of kimi-hook: read the event, post it, relay what the agent can act on.

Built-in modules only, except where noted. One deadline covers everything; a reply counts only whole.
"""

import sys
import time

if sys.platform == "win32":
    import nt as system
else:
    import posix as system

USAGE = "usage: kimi-hook URL [--timeout MS] [--detach] [--token-file FILE]"
HELP = f"""{USAGE}

Reads one hook event (JSON) on standard input and posts it to URL, the full /hook address of the service
(http://127.0.0.1:8398/hook). Prints the reply only if it denies or says something to the agent.
Exits with 0 whatever happens.

  --timeout MS       limit for everything together, 1 to 600000 (default 5000; the agent's own limit is 30 s)
  --detach           let go of the agent first; for events whose hooks it kills at the end of a turn
  --token-file FILE  read the bearer token from FILE (default: the environment variable AEP_TOKEN)
"""

TIMEOUT_MS = 5000
LONGEST_MS = 600_000
# Seconds for a last try to send, between the SIGTERM of the agent and its SIGKILL 100 ms later.
GRACE = 0.08
LARGEST_EVENT = 64 << 20
LARGEST_REPLY = 1 << 20
CHUNK = 256 << 10


class Usage(Exception):
    """The arguments make no sense."""


class Silent(Exception):
    """There is nothing to send, or nothing to relay."""


class Options:
    """What the command line says."""

    def __init__(self, arguments: list[str]) -> None:
        self.timeout = TIMEOUT_MS / 1000
        self.token_file = ""
        url = ""
        words = iter(arguments)
        for word in words:
            if word == "--timeout":
                value = next(words, "")
                if not (value.isascii() and value.isdigit() and 0 < int(value[:9]) <= LONGEST_MS):
                    raise Usage(f"--timeout needs 1 to {LONGEST_MS} milliseconds")
                self.timeout = int(value) / 1000
            elif word == "--token-file":
                self.token_file = next(words, "")
                if not self.token_file:
                    raise Usage("--token-file needs a file")
            elif word == "--detach":
                continue
            elif url or word.startswith("-"):
                raise Usage(f"unexpected argument {word!r}")
            else:
                url = word
        self._take(url)

    def _take(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
        authority, path = rest[:cut], rest[cut:].partition("#")[0]
        host, colon, port = authority.rpartition(":")
        if not colon or "]" in port:
            host, port = authority, ""
        self.tls = scheme == "https"
        self.authority = authority
        self.host = host[1:-1] if host.startswith("[") else host
        self.path = path if path.startswith("/") else "/" + path
        if scheme not in ("http", "https") or not self.host or "@" in authority:
            raise Usage("URL must look like http://127.0.0.1:8398/hook")
        if not (url.isascii() and url.isprintable()) or " " in url or (port and not port.isdigit()):
            raise Usage("URL must look like http://127.0.0.1:8398/hook")
        self.port = int(port) if port else 443 if self.tls else 80


class Deadline:
    """The one limit, in seconds from now, for reading, resolving, connecting, sending and receiving."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.sent = False

    def left(self) -> float:
        """Seconds that remain; raises Silent when there are none."""
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            raise Silent
        return seconds

    def arm(self) -> None:
        """End the process at the limit, whatever it is waiting in."""
        if sys.platform == "win32":
            self.guard()
        else:
            import _signal as signal  # type: ignore[import-not-found]

            signal.signal(signal.SIGALRM, leave)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
            signal.setitimer(signal.ITIMER_REAL, self.left())

    def guard(self) -> None:
        """The same from a thread: a signal does not interrupt name resolution."""
        import _thread

        def sleep(seconds: float) -> None:
            time.sleep(seconds)
            leave()

        _thread.start_new_thread(sleep, (self.left(),))

    def heed(self) -> None:
        """Leave with 0 when the agent wants us gone, after a last try where the event is not sent yet."""
        if sys.platform != "win32":
            import _signal as signal

            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        if self.sent:
            leave()
        self.end = min(self.end, time.monotonic() + GRACE)
        self.arm()


def leave(*_: object) -> None:
    """End the process at once, without the interpreter's own tidying up."""
    system._exit(0)


def whole(text: bytes) -> bool:
    """Whether this JSON object is there to its end: no proper prefix of an object passes."""
    if not text.lstrip(b" \t\r\n").startswith(b"{"):
        return False
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    pieces = text.split(b'"')
    outside = b"".join(pieces[::2])
    return (
        len(pieces) % 2 == 1
        and outside.count(b"{") == outside.count(b"}")
        and outside.count(b"[") == outside.count(b"]")
    )


def read_event(source: int) -> bytes:
    """All of ``source``; raises Silent where that is no whole object, or above LARGEST_EVENT bytes."""
    parts = []
    size = 0
    while part := system.read(source, CHUNK):
        size += len(part)
        if size <= LARGEST_EVENT:
            parts.append(part)
    event = b"".join(parts)
    if size > LARGEST_EVENT or not whole(event):
        raise Silent
    return event


def bearer(token_file: str) -> str:
    """The Authorization line, empty without a token; raises Silent for a token that cannot be a header."""
    if token_file:
        token = system.read(system.open(token_file, system.O_RDONLY), 4096).decode().strip()
    elif sys.platform == "win32":
        token = system.environ.get("AEP_TOKEN", "").strip()
    else:
        token = system.environ.get(b"AEP_TOKEN", b"").decode().strip()
    if not (token.isascii() and token.isprintable()):
        raise Silent
    return f"Authorization: Bearer {token}\r\n" if token else ""


class Link:
    """A connection to the service, every wait on it bounded by the deadline."""

    def __init__(self, options: Options, deadline: Deadline) -> None:
        import _socket

        self.deadline = deadline
        self.buffer = b""
        self.taken = 0
        if options.tls:
            self._connect_tls(options)
            return
        addresses = self._addresses(options)
        for turn, (family, address) in enumerate(addresses):
            self.socket = _socket.socket(family, _socket.SOCK_STREAM)
            try:
                # An address that swallows packets leaves time for the others.
                self.socket.settimeout(deadline.left() / (len(addresses) - turn))
                self.socket.connect(address)
                break
            except OSError:
                self.socket.close()
        else:
            raise Silent
        self.socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)

    def _addresses(self, options: Options) -> list[tuple[int, tuple[str, int]]]:
        import _socket

        host, port = options.host, options.port
        if host == "localhost":
            return [(_socket.AF_INET, ("127.0.0.1", port)), (_socket.AF_INET6, ("::1", port))]
        if ":" in host:
            return [(_socket.AF_INET6, (host, port))]
        if host.rpartition(".")[2].isdigit():
            return [(_socket.AF_INET, (host, port))]
        self.deadline.guard()
        found = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
        return [(family, (str(address[0]), port)) for family, _, _, _, address in found]

    def _connect_tls(self, options: Options) -> None:
        # Encryption costs a standard library import; plain http on a trusted network stays lean.
        import socket
        import ssl

        self.deadline.guard()
        plain = socket.create_connection((options.host, options.port), self.deadline.left())
        plain.settimeout(self.deadline.left())
        self.socket = ssl.create_default_context().wrap_socket(plain, server_hostname=options.host)

    def send(self, request: bytes) -> None:
        """Send all of it."""
        self.socket.settimeout(self.deadline.left())
        self.socket.sendall(request)

    def _more(self) -> None:
        self.socket.settimeout(self.deadline.left())
        part = self.socket.recv(CHUNK)
        self.taken += len(part)
        if not part or self.taken > LARGEST_REPLY:
            raise Silent
        self.buffer += part

    def line(self) -> bytes:
        """The next line, without its end."""
        while b"\r\n" not in self.buffer:
            self._more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        while len(self.buffer) < size:
            self._more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data


def head(link: Link) -> dict[bytes, bytes]:
    """The header fields of the final response; raises Silent unless its status is 200."""
    while True:
        version, _, status = link.line().partition(b" ")
        fields: dict[bytes, bytes] = {}
        while line := link.line():
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip()
            if fields.setdefault(name, value) != value and name in (b"content-length", b"transfer-encoding"):
                raise Silent
        if not version.startswith(b"HTTP/1."):
            raise Silent
        if not status.startswith(b"1"):
            break
    if status[:3] != b"200" or status[3:4].strip():
        raise Silent
    return fields


def receive(link: Link) -> bytes:
    """The body of the reply; raises Silent unless it is JSON by its type and complete by its own account."""
    fields = head(link)
    kind = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    length = fields.get(b"content-length", b"")
    coding = fields.get(b"transfer-encoding", b"").lower()
    if kind != b"application/json" or fields.get(b"content-encoding", b"identity") != b"identity":
        raise Silent
    body = b""
    if coding == b"chunked" and not length:
        while size := int(link.line().partition(b";")[0], 16):
            body += link.take(size)
            if size < 0 or link.take(2) != b"\r\n":
                raise Silent
        while link.line():
            continue
    elif length.isdigit() and not coding:
        body = link.take(int(length[:9]))
    else:
        raise Silent
    if link.buffer:
        raise Silent
    return body.strip()


def acts(body: bytes) -> bool:
    """Whether the agent acts on this reply: a denial, or something said (kimi-code 2.1.0 hook runner)."""
    if body == b"{}" or not (b'"message"' in body or b'"hookSpecificOutput"' in body):
        return False
    # Rare, and then being exact is worth an import: anything else printed here would reach the model.
    import json

    def refuse(constant: str) -> None:
        raise Silent

    reply = json.loads(body.decode(), parse_constant=refuse)
    if not isinstance(reply, dict):
        return False
    output = reply.get("hookSpecificOutput")
    if not isinstance(output, dict):
        output = {}
    said = reply.get("message") or output.get("message")
    return output.get("permissionDecision") == "deny" or (isinstance(said, str) and bool(said))


def write(stream: int, text: bytes) -> None:
    """All of it, to a descriptor."""
    while text:
        text = text[system.write(stream, text) :]


def run(arguments: list[str], source: int, held: int) -> None:
    """Do what the arguments say.

    Args:
        arguments: The command line without the program.
        source: The descriptor of the event.
        held: The descriptor that keeps the first process in place until it is closed, -1 if there is none.
    """
    if "--help" in arguments or "-h" in arguments:
        return write(1, HELP.encode())
    try:
        options = Options(arguments)
    except Usage as problem:
        if system.isatty(2):
            write(2, f"kimi-hook: {problem}\n{USAGE}\n".encode())
        return None
    deadline = Deadline(options.timeout)
    deadline.arm()
    if held < 0:
        deadline.heed()
    event = read_event(source)
    if held >= 0:
        system.close(held)
        system.close(source)
    link = Link(options, deadline)
    link.send(
        (
            f"POST {options.path} HTTP/1.1\r\nHost: {options.authority}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(event)}\r\nConnection: close\r\n{bearer(options.token_file)}\r\n"
        ).encode()
        + event
    )
    deadline.sent = True
    reply = receive(link)
    if acts(reply):
        write(1, reply)
