"""write → write → remove over every shape of config: exact to the byte, and accepted at every stage."""

from __future__ import annotations

import pytest

from deploy.setup import blocks, compare, edit, schema
from deploy.setup.blocks import EVENTS_20, Registration
from deploy.setup.document import Document, decode
from deploy.setup.errors import SetupError
from tests.setup.shapes import (
    FOUND,
    HOOK,
    KEPT,
    MARKED,
    NAME,
    REFUSED,
    REGISTRATION,
    Found,
    Refused,
    registered,
)

ALL = KEPT | MARKED
NEWER = Registration("/usr/bin/python3", "/srv/aep/kimi_hook.py", "http://[::1]:8398/hook", events=EVENTS_20)


def hooks_of(data: bytes) -> list[tuple[object, object, object]]:
    """Our entries in a file that passes the vendor's strict schema."""
    document = Document(decode(data, NAME)[1])
    assert schema.check(document) == []
    assert schema.obstacle(document) is None
    own = [e.values for e in document.entries if edit.is_mine(e.command)]
    return [(v["event"], v["command"], v["timeout"]) for v in own]


def wanted(registration: Registration) -> list[tuple[object, object, object]]:
    return [(h.event, h.command, h.timeout) for h in blocks.hooks(registration)]


def test_there_are_at_least_forty_shapes() -> None:
    assert len(ALL) >= 50
    assert len(FOUND) >= 30


@pytest.mark.parametrize("name", ALL)
def test_write_write_remove_ends_where_it_began(name: str) -> None:
    data = ALL[name]
    first = registered(data)
    assert hooks_of(first) == wanted(REGISTRATION)
    assert registered(first) == first
    refreshed = registered(first, NEWER)
    assert hooks_of(refreshed) == wanted(NEWER)
    assert registered(refreshed) == first
    assert edit.remove(first, NAME).data == data
    assert edit.remove(refreshed, NAME).data == data
    assert edit.remove(data, NAME).data == data


@pytest.mark.parametrize("name", ALL)
def test_every_byte_outside_the_fence_stays(name: str) -> None:
    data = ALL[name]
    new = registered(data)
    assert new.startswith(data)
    begin, end = new.index(b"# >>> aep-kimi hooks", len(data)), new.rindex(b"# <<< aep-kimi hooks <<<")
    assert new[len(data) : begin] in (b"", b"\n", b"\r\n")
    assert new[end:].rstrip(b"\r\n") == b"# <<< aep-kimi hooks <<<"


@pytest.mark.parametrize("name", ALL)
def test_the_fence_has_the_line_endings_of_the_file(name: str) -> None:
    added = registered(ALL[name])[len(ALL[name]) :]
    lines = added.splitlines(keepends=True)
    last = ALL[name].rfind(b"\n")
    crlf = last > 0 and ALL[name][last - 1 : last] == b"\r"
    assert {line.endswith(b"\r\n") for line in lines} == {crlf}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_becomes_one_fence_and_can_be_removed(name: str) -> None:
    shape: Found = FOUND[name]
    assert edit.remove(shape.data, NAME).data == shape.without
    written = edit.write(shape.data, NAME, NEWER, refence=shape.refence).data
    assert written is not None
    assert hooks_of(written) == wanted(NEWER)
    assert written.count(b"# >>> aep-kimi") == written.count(b"# <<< aep-kimi") == 1
    assert edit.write(written, NAME, NEWER).data == written
    assert edit.remove(written, NAME).data == shape.without


@pytest.mark.parametrize("name", [name for name, shape in FOUND.items() if shape.refence])
def test_a_second_set_is_never_added(name: str) -> None:
    shape = FOUND[name]
    with pytest.raises(SetupError, match="--refence"):
        edit.write(shape.data, NAME, NEWER)


def test_entries_without_a_fence_that_are_up_to_date_are_left_alone() -> None:
    data = FOUND["saved by Kimi Code"].data
    edited = edit.write(data, NAME, REGISTRATION)
    assert edited.data == data
    assert "--refence" in edited.notes[0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_with_line_and_remedy(name: str) -> None:
    shape: Refused = REFUSED[name]
    with pytest.raises(SetupError) as refused:
        edit.write(shape.data, NAME, REGISTRATION)
    message = str(refused.value)
    assert message.startswith(f"{NAME}, line {shape.line}: "), message
    assert shape.words in message
    assert "\n" not in message
    assert "; " in message


@pytest.mark.parametrize("name", ["the vendor's reference observer", "our console script by hand"])
def test_another_observer_can_be_accepted(name: str) -> None:
    data = REFUSED[name].data
    edited = edit.write(data, NAME, REGISTRATION, beside=True).data
    assert edited is not None
    assert hooks_of(edited) == wanted(REGISTRATION)
    assert edit.remove(edited, NAME).data == data


@pytest.mark.parametrize(
    ("data", "fixed"),
    [
        (b"a = 1\nhooks = []\n[t]\n", b"a = 1\n[t]\n"),
        (b"hooks=[ ] # seeded\n", b""),
        (b"hooks = []", b""),
        (b"hooks = [\n]\na = 1\n", b"a = 1\n"),
        (
            b'hooks = []\n[[hooks]]\nevent = "Stop"\ncommand = "x"\n',
            b'[[hooks]]\nevent = "Stop"\ncommand = "x"\n',
        ),
        (b"\xef\xbb\xbfa = 1\r\nhooks = []\r\n", b"\xef\xbb\xbfa = 1\r\n"),
        (b"[t]\nhooks = []\n", b"[t]\nhooks = []\n"),
        (b'hooks = [{event = "Stop", command = "x"}]\n', b'hooks = [{event = "Stop", command = "x"}]\n'),
        (b'note = """\nhooks = []\n"""\n', b'note = """\nhooks = []\n"""\n'),
    ],
)
def test_fix_takes_out_an_empty_hooks_array_and_nothing_else(data: bytes, fixed: bytes) -> None:
    assert edit.fix(data, NAME) == fixed


def test_an_entry_of_somebody_else_inside_the_fence_is_never_lost() -> None:
    data = registered(b"").replace(b"[[hooks]]", b'[[hooks]]\nevent = "Stop"\ncommand = "mine"\n[[hooks]]', 1)
    said = r"line 2: this stands among the hooks of aep-setup"
    with pytest.raises(SetupError, match=said):
        edit.write(data, NAME, NEWER)
    with pytest.raises(SetupError, match=said):
        edit.remove(data, NAME)


def test_a_setting_inside_the_fence_is_never_lost() -> None:
    data = registered(b"").replace(b"# <<<", b'model = "x"\n# <<<')
    with pytest.raises(SetupError, match="line 66: this stands among the hooks"):
        edit.remove(data, NAME)


def test_a_setting_that_joined_an_unfenced_entry_is_never_lost() -> None:
    data = FOUND["saved by Kimi Code"].data + b'model = "x"\n'
    with pytest.raises(SetupError, match="this stands among the hooks"):
        edit.remove(data, NAME)


def test_a_setting_below_the_fence_is_named_with_its_line() -> None:
    data = FOUND["a setting below the fence"].data
    with pytest.raises(SetupError, match=r"line 68: `model` stands below the hooks of aep-setup.*--refence"):
        edit.write(data, NAME, NEWER)


def test_a_setting_below_a_fence_that_is_up_to_date_is_named_too() -> None:
    data = FOUND["a setting below the fence"].data
    with pytest.raises(SetupError, match=r"line 68: `model` stands below the hooks of aep-setup.*--refence"):
        edit.write(data, NAME, REGISTRATION)


def test_a_setting_below_the_fence_may_join_a_hook_of_the_user_instead() -> None:
    data = registered(HOOK) + b'model = "x"\n'
    with pytest.raises(
        SetupError, match=r"line 70: hooks\[0\] has the key `model`.*above the first \[table\]"
    ):
        edit.write(data, NAME, REGISTRATION, refence=True)
    removed = edit.remove(data, NAME)
    assert removed.data == HOOK + b'model = "x"\n'
    assert "line 4: hooks[0] has the key `model`" in removed.notes[0]


def test_a_setting_below_the_fence_may_be_there_twice() -> None:
    data = registered(b"a = 1\n") + b"a = 2\n"
    for refence in (False, True):
        with pytest.raises(SetupError, match="line 68: without our hooks this is not TOML"):
            edit.write(data, NAME, REGISTRATION, refence=refence)
    with pytest.raises(SetupError, match="line 68: without our hooks this is not TOML"):
        edit.remove(data, NAME)


def test_a_newer_event_of_somebody_else_is_refused_for_an_older_vendor() -> None:
    data = b'[[hooks]]\nevent = "TurnStarted"\ncommand = "x"\n'
    with pytest.raises(SetupError, match=r"line 2: .*does not know.*update Kimi Code"):
        edit.write(data, NAME, REGISTRATION, accepted=blocks.EVENTS_16)
    assert edit.write(data, NAME, REGISTRATION).data


def test_a_file_that_write_made_goes_with_remove() -> None:
    made = registered(None)
    assert edit.remove(made, NAME).data is None
    assert edit.remove(made + b"[t]\n", NAME).data == b"[t]\n"
    assert edit.remove(registered(made, NEWER), NAME).data is None


def test_the_difference_shows_no_line_of_the_user() -> None:
    data = KEPT["a real config, no final newline"]
    text = edit.difference(data, registered(data), NAME)
    assert "sk-0123456789abcdef" not in text
    assert text.count("+[[hooks]]") == 16


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("current", None),
        ("a timeout edited by hand", "changed by hand: PreToolUse"),
        ("a matcher added by hand", "changed by hand: PreToolUse"),
        ("a comment added by hand", "the fence was edited by hand"),
        ("a command line lost", "changed by hand: PreToolUse"),
        ("the fence twice", "events registered twice"),
        ("another address, interpreter and shim", "address: http://old.example.org/hook instead of "),
        ("newer events", "events that this Kimi Code may not accept: UserPromptQueued"),
        ("control and a token", "control: registered"),
        ("the second half lost", "events missing: Stop, StopFailure"),
        ("saved by Kimi Code", None),
        ("converted to CRLF", None),
    ],
)
def test_it_is_told_what_is_out_of_date(name: str, reason: str | None) -> None:
    reasons = compare.stale(edit.load(FOUND[name].data, NAME), REGISTRATION)
    if reason is None:
        assert reasons == ()
    else:
        assert any(said.startswith(reason) for said in reasons), reasons
