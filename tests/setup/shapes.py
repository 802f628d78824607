"""Config files as people and programs leave them: the golden shapes of the setup writer."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.setup import blocks, edit
from deploy.setup.blocks import EVENTS_16, EVENTS_20, Registration

NAME = "config.toml"
REGISTRATION = Registration(
    python="/opt/aep kimi/bin/python",
    shim="/opt/aep kimi/deploy/shim/kimi_hook.py",
    url="http://127.0.0.1:8398/hook",
    events=EVENTS_16,
)
HOOK = b'[[hooks]]\nevent = "Stop"\ncommand = "say done"\n'
OTHER = b'[[hooks]]\nevent = "PreToolUse"\nmatcher = "Bash|Write"\ncommand = "guard.sh"\ntimeout = 5\n'
REAL = b"""# my settings
default_model = "kimi/k2"
default_permission_mode = "manual"
telemetry = false

[providers.kimi]
type = "kimi"
base_url = "https://api.example.org/v1"   # no trailing slash
api_key = "sk-0123456789abcdef"

[models."kimi/k2"]
provider = "kimi"
model = "k2"
max_context_size = 262144
capabilities = ["tool_use", "thinking"]

[loop_control]
max_steps_per_turn = 1000
"""

KEPT: dict[str, bytes] = {
    "empty": b"",
    "one newline": b"\n",
    "one key": b"a = 1\n",
    "no final newline": b'a = 1\nb = "x"',
    "one key, no newline at all": b"a = 1",
    "only a comment": b"# nothing yet\n",
    "only a comment, no newline": b"# nothing yet",
    "a real config": REAL,
    "a real config, no final newline": REAL[:-1],
    "blank lines at the end": REAL + b"\n\n\n",
    "spaces at the end, no newline": b"a = 1\n   ",
    "tabs on a blank last line": b"a = 1\n\t\t\n",
    "CRLF": REAL.replace(b"\n", b"\r\n"),
    "CRLF, no final newline": REAL[:-1].replace(b"\n", b"\r\n"),
    "CRLF first, LF last": b"a = 1\r\nb = 2\n",
    "LF first, CRLF last": b"a = 1\nb = 2\r\n",
    "one hook": HOOK,
    "a hook, no final newline": HOOK[:-1],
    "hooks below settings": REAL + b"\n" + HOOK + b"\n" + OTHER,
    "hooks between tables": HOOK + b"\n[loop_control]\nmax_steps_per_turn = 10\n\n" + OTHER,
    "hooks split over the file": HOOK
    + b"[a]\nb = 1\n"
    + OTHER
    + b"[c]\nd = 2\n"
    + HOOK.replace(b"say", b"cry"),
    "a comment below the last hook": HOOK + b"# that was the last one\n",
    "headers with blanks": b'[[ hooks ]]\nevent = "Stop"\ncommand = "x"\n',
    "headers in quotes": b'[["hooks"]]\n"event" = "Stop"\n\'command\' = "x"\n',
    "indented": b'  [[hooks]]\n    event = "Stop"\n\tcommand = "x"\n',
    "a hook with a long string": b'[[hooks]]\nevent = "Stop"\ncommand = """\\\n echo "a" && \\\n echo b"""\n',
    "a hook with a literal string": b"[[hooks]]\nevent = 'Stop'\ncommand = 'C:\\tools\\say.exe \"done\"'\n",
    "timeout 5.0": HOOK + b"timeout = 5.0\n",
    "timeout 600": HOOK + b"timeout = 600\n",
    "hooks of another table": b"[x]\nhooks = []\n[y.hooks]\na = 1\n[[z.hooks]]\nb = 2\n",
    "our markers in a string": (
        b'note = """\n# >>> aep-kimi hooks >>> written by\n[[hooks]]\n# <<< aep-kimi hooks <<<\n"""\n'
    ),
    "a hooks header in a literal string": b"note = '''\n[[hooks]]\nevent = 'Stop'\n'''\n",
    "comments much like markers": b"# >>> aep hooks >>>\n# <<< aep-kimi\n#>>> aep-kimi hooks >>>\na = 1\n",
    "arrays over lines": b'a = [ # [[hooks]]\n  "]", # x\n  ["#", \'"\'],\n]\n[t]\nb = [\n1,\n2 ]\n',
    "inline tables": b'a = { b = 1, c = { d = "}" } }\nt = [ { x = 1 }, { x = 2 } ]\n',
    "dotted keys": b'a.b.c = 1\na."b c".d = 2\n[t.u]\nv.w = 3\n',
    "nested arrays of tables": b"[[a]]\nb = 1\n[[a.c]]\nd = 1\n[[a.c]]\nd = 2\n[[a]]\nb = 2\n",
    "a table over its subtable": b"[a.b]\nc = 1\n[a]\nd = 2\n",
    "dates and odd numbers": b"a = 1979-05-27T07:32:00Z\nb = 07:32:00\nc = inf\nd = -nan\ne = 0x1F\n",
    "quotes at the end of a string": b'a = """x"""""\nb = \'\'\'y\'\'\'\'\'\nc = "\\\\"\nd = "\\""\n',
    "hash signs in strings": b"a = \"# no comment\" # a comment\nb = '# no # comment'\n",
    "not ASCII": 'name = "Ünïcødé 🚀 \\u00e9"\n"schlüssel 🔑" = 1\n# 注释\n'.encode(),
    "a long line": b'a = "' + b"x" * 100_000 + b'"\n',
    "an empty table at the end": b"a = 1\n[empty]\n",
    "an empty table at the end, no newline": b"a = 1\n[empty]",
    "CRLF in a long string": b'a = """x\r\ny"""\r\nb = 1\r\n',
    "as Kimi Code saves it": (
        b'default_model = "kimi/k2"\n\n[providers.kimi]\ntype = "kimi"\n\n[[hooks]]\nevent = "Stop"\n'
        b'command = "say done"\n\n[services]\nlist = [ "a", "b" ]\n'
    ),
    "TOML 1.1, inline table over lines": b"a = {\n  b = 1,\n  c = 2,\n}\n",
    "TOML 1.1, short escapes": b'a = "\\e[1m\\x41"\nt = 10:00\n',
    "many tables": b"".join(b"[t%d]\na = %d\n" % (i, i) for i in range(200)),
}

MARKED: dict[str, bytes] = {
    "BOM": b"\xef\xbb\xbf" + REAL,
    "BOM and CRLF": b"\xef\xbb\xbf" + REAL.replace(b"\n", b"\r\n"),
    "BOM and nothing": b"\xef\xbb\xbf",
}
"""Kimi Code cannot read a file with a byte order mark, with us or without."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that must stay untouched, the line that the message names, and words of it."""

    data: bytes
    line: int
    words: str


REFUSED: dict[str, Refused] = {
    "hooks = []": Refused(b"a = 1\nhooks = []\n", 2, "--fix"),
    "hooks = [] above hooks": Refused(b"hooks = []\n" + HOOK, 1, "--fix"),
    "an inline array": Refused(b'a = 1\n\nhooks = [{event = "Stop", command = "x"}]\n', 3, "inline array"),
    "an inline array over lines": Refused(
        b'hooks = [\n  {event = "Stop", command = "x"},\n]\n', 1, "inline array"
    ),
    "a [hooks] table": Refused(b'a = 1\n[hooks]\nevent = "Stop"\n', 2, "double brackets"),
    "a dotted hooks key": Refused(b"hooks.stop = 1\n", 1, "double brackets"),
    "hooks as a number": Refused(b"hooks = 5\n", 1, "double brackets"),
    "an unterminated string": Refused(b'a = 1\nb = "abc\nc = 2\n', 2, "never closed"),
    "an unterminated long string": Refused(b'a = 1\nb = """abc\nc = 2\n', 2, "never closed"),
    "an unterminated array": Refused(b"a = 1\nb = [1,\n2\n", 2, "never closed"),
    "an unterminated header": Refused(b"a = 1\n[[hooks]\n", 2, "missing"),
    "a stray word": Refused(b"a = 1\nwhat\n", 2, "missing"),
    "a key twice": Refused(b"a = 1\na = 2\n", 2, "not TOML"),
    "not UTF-8": Refused(b"a = 1\n# caf\xe9\n", 2, "UTF-8"),
    "UTF-16": Refused("a = 1\n".encode("utf-16"), 1, "UTF-8"),
    "a NUL": Refused(b'a = "\0"\n', 1, "not TOML"),
    "a lone CR": Refused(b"a = 1\rb = 2\r", 1, "not TOML"),
    "an unknown key in a hook": Refused(HOOK + b'description = "x"\n', 4, "`description`"),
    "a setting below a hook": Refused(HOOK + b"\ndefault_yolo = true\n", 5, "above the first [table]"),
    "a subtable of a hook": Refused(HOOK + b"[hooks.env]\nA = 1\n", 4, "`env`"),
    "an unknown event": Refused(b'[[hooks]]\nevent = "PreTool"\ncommand = "x"\n', 2, "PreTool"),
    "a lower-case event": Refused(b'[[hooks]]\nevent = "stop"\ncommand = "x"\n', 2, "stop"),
    "no event": Refused(b'a = 1\n[[hooks]]\ncommand = "x"\n', 2, "no event"),
    "no command": Refused(b'[[hooks]]\nevent = "Stop"\n', 1, "no command"),
    "an empty command": Refused(b'[[hooks]]\nevent = "Stop"\ncommand = ""\n', 3, "no command"),
    "a command that is no string": Refused(b'[[hooks]]\nevent = "Stop"\ncommand = ["x"]\n', 3, "no command"),
    "timeout 0": Refused(HOOK + b"timeout = 0\n", 4, "1 to 600"),
    "timeout 601": Refused(HOOK + b"timeout = 601\n", 4, "1 to 600"),
    "timeout 1.5": Refused(HOOK + b"timeout = 1.5\n", 4, "1 to 600"),
    "timeout inf": Refused(HOOK + b"timeout = inf\n", 4, "1 to 600"),
    "timeout true": Refused(HOOK + b"timeout = true\n", 4, "1 to 600"),
    "timeout in quotes": Refused(HOOK + b'timeout = "5"\n', 4, "1 to 600"),
    "a matcher that is a number": Refused(HOOK + b"matcher = 5\n", 4, "matcher"),
    "the second hook broken": Refused(HOOK + b'\n[[hooks]]\nevent = "Halt"\ncommand = "x"\n', 6, "hooks[1]"),
    "the vendor's reference observer": Refused(
        b'[[hooks]]\nevent = "Stop"\ncommand = "node /opt/aep/kimi-hook.js http://127.0.0.1:8398"\n',
        1,
        "--beside",
    ),
    "our console script by hand": Refused(
        b'[[hooks]]\nevent = "Stop"\ncommand = "/usr/local/bin/kimi-hook http://127.0.0.1:9000/hook"\n',
        1,
        "--beside",
    ),
}


def registered(data: bytes | None, wanted: Registration = REGISTRATION) -> bytes:
    """The file after `write`."""
    written = edit.write(data, NAME, wanted).data
    assert written is not None
    return written


def fence_of(wanted: Registration = REGISTRATION) -> bytes:
    """The fence as it stands in a file that ended with a newline."""
    return registered(b"", wanted)


def _line(command: str) -> str:
    return f"command = {blocks.quote_toml(command)}\n"


def bare(wanted: Registration = REGISTRATION) -> bytes:
    """Our entries as Kimi Code saves them: no comment, a blank line between tables."""
    return b"\n".join(
        f'[[hooks]]\nevent = "{h.event}"\n{_line(h.command)}timeout = {h.timeout}\n'.encode()
        for h in blocks.hooks(wanted)
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A file with something of ours in it, and what it is without us. `refence`: `write` needs it."""

    data: bytes
    without: bytes
    refence: bool = False


def _without_marker(data: bytes, mark: bytes) -> bytes:
    return b"".join(line for line in data.splitlines(keepends=True) if mark not in line)


_BEGIN, _END = b"# >>> aep-kimi", b"# <<< aep-kimi"
_OLD = Registration(
    python="/old/python", shim="/old/kimi_hook.py", url="http://old.example.org/hook", events=EVENTS_16
)


def _half(data: bytes) -> bytes:
    return data[: data.index(b'event = "Stop"\n') - len(b"[[hooks]]\n")]


FOUND: dict[str, Found] = {
    "current": Found(registered(REAL), REAL),
    "a user's hook before and after": Found(registered(HOOK) + OTHER, HOOK + OTHER),
    "tables after": Found(registered(REAL) + b"\n[more]\na = 1\n", REAL + b"\n[more]\na = 1\n"),
    "in the middle of hooks": Found(HOOK + fence_of() + b"\n" + OTHER, HOOK + b"\n" + OTHER),
    "at the top": Found(fence_of() + b"\n" + OTHER, b"\n" + OTHER),
    "added to a file without a final newline": Found(registered(REAL[:-1]), REAL[:-1]),
    "text added after a file without a final newline": Found(
        registered(b"a = 1") + b"[more]\nb = 2\n", b"a = 1\n[more]\nb = 2\n"
    ),
    "another address, interpreter and shim": Found(registered(REAL, _OLD), REAL),
    "newer events": Found(
        registered(REAL, Registration(_OLD.python, _OLD.shim, _OLD.url, events=EVENTS_20)), REAL
    ),
    "control and a token": Found(
        registered(REAL, Registration(_OLD.python, _OLD.shim, _OLD.url, "/etc/it's a token", True)), REAL
    ),
    "a timeout edited by hand": Found(registered(REAL).replace(b"timeout = 10", b"timeout = 20", 1), REAL),
    "a matcher added by hand": Found(
        registered(REAL).replace(b"timeout = 10", b'timeout = 10\nmatcher = "Bash"', 1), REAL
    ),
    "a comment added by hand": Found(registered(REAL).replace(b"[[hooks]]", b"# mine\n[[hooks]]", 1), REAL),
    "a command line lost": Found(
        registered(REAL).replace(_line(blocks.command(REGISTRATION, "Stop")).encode(), b""),
        REAL,
    ),
    "the fence twice": Found(registered(REAL) + fence_of(), REAL),
    "the fence twice, no final newline": Found(registered(b"a = 1") + registered(b"a = 1")[6:], b"a = 1"),
    "the fence twice, apart": Found(
        registered(REAL) + b"[more]\na = 1\n" + fence_of(_OLD), REAL + b"[more]\na = 1\n"
    ),
    "the begin marker lost": Found(_without_marker(registered(REAL), _BEGIN), REAL),
    "the end marker lost": Found(_without_marker(registered(REAL), _END), REAL),
    "the end marker lost, hooks after": Found(_without_marker(registered(REAL), _END) + OTHER, REAL + OTHER),
    "the begin marker lost, hooks before": Found(
        _without_marker(registered(REAL + HOOK), _BEGIN), REAL + HOOK
    ),
    "the second half lost": Found(_half(registered(REAL)), REAL),
    "only the begin marker left": Found(REAL + fence_of().splitlines(keepends=True)[0], REAL),
    "only the end marker left": Found(REAL + fence_of().splitlines(keepends=True)[-1], REAL),
    "an end marker lost, then a whole fence": Found(
        _without_marker(registered(REAL), _END) + fence_of(), REAL
    ),
    "saved by Kimi Code": Found(b"a = 1\n\n[t]\nb = 2\n\n" + bare(), b"a = 1\n\n[t]\nb = 2\n", refence=True),
    "saved by Kimi Code, a blank line at the end": Found(
        b"a = 1\n\n" + bare() + b"\n", b"a = 1\n\n", refence=True
    ),
    "saved by Kimi Code, tables after": Found(
        b"a = 1\n\n" + bare() + b"\n[t]\nb = 2\n", b"a = 1\n\n[t]\nb = 2\n", refence=True
    ),
    "saved by Kimi Code, hooks around": Found(
        b"a = 1\n\n" + HOOK + b"\n" + bare() + b"\n" + OTHER,
        b"a = 1\n\n" + HOOK + b"\n" + OTHER,
        refence=True,
    ),
    "saved by Kimi Code, nothing else": Found(bare(), b"", refence=True),
    "saved by Kimi Code, out of date": Found(b"a = 1\n\n" + bare(_OLD), b"a = 1\n", refence=True),
    "saved by Kimi Code, then written by an older aep-setup": Found(
        b"a = 1\n\n" + bare(_OLD) + fence_of(), b"a = 1\n\n", refence=True
    ),
    "a setting below the fence": Found(
        registered(b"a = 1\n") + b'model = "x"\n', b'a = 1\nmodel = "x"\n', refence=True
    ),
    "converted to CRLF": Found(registered(REAL).replace(b"\n", b"\r\n"), REAL.replace(b"\n", b"\r\n")),
}
