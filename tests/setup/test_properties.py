"""Any pile of lines, markers and entries: refused untouched, or written, refreshed and removed exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.setup import blocks, edit, schema
from deploy.setup.blocks import Registration
from deploy.setup.document import Document
from deploy.setup.errors import SetupError
from tests.setup.shapes import HOOK, NAME, OTHER, bare, fence_of

OLDER = Registration("/p", "/kimi_hook.py", "http://h:1/hook", events=("Stop", "PostToolUse"))
NEWER = Registration("/p", "/kimi_hook.py", "http://h:2/hook", events=("Stop", "Interrupt", "PostToolUse"))
_FENCE = fence_of(OLDER).decode()
_BARE = bare(OLDER).decode()
_LINES = _FENCE.splitlines(keepends=True)
_PIECES = [
    "\n",
    "\n\n",
    "   \n",
    "# a comment\n",
    "a = 1\n",
    'b = """\n',
    '"""\n',
    "c = [\n",
    "]\n",
    "[t]\n",
    "[u]\n",
    "[[v]]\n",
    "x = 1\n",
    "y = 2",
    "hooks = []\n",
    HOOK.decode(),
    OTHER.decode(),
    HOOK.decode().rstrip("\n"),
    _FENCE,
    _FENCE.replace(" hooks >>>", " hooks +newline >>>", 1),
    fence_of(NEWER).decode(),
    _BARE,
    _BARE.split("\n\n")[0] + "\n",
    _LINES[0],
    _LINES[-1],
    "".join(_LINES[:5]),
    "".join(_LINES[-5:]),
]
texts = st.lists(st.sampled_from(_PIECES), max_size=9).map("".join)
endings = st.sampled_from(["\n", "\r\n"])


def outcome(data: bytes, wanted: Registration, *, refence: bool) -> bytes | None:
    try:
        return edit.write(data, NAME, wanted, refence=refence).data
    except SetupError as error:
        said = str(error)
    assert "; " in said
    return None


@given(texts, endings, st.booleans())
def test_written_exactly_or_refused(text: str, eol: str, refence: bool) -> None:
    data = text.replace("\n", eol).encode()
    try:
        without = edit.remove(data, NAME).data
    except SetupError:
        without = None
    written = outcome(data, OLDER, refence=refence)
    if written is None:
        return
    document = Document(written.decode())
    own = [e for e in document.entries if edit.is_mine(e.command)]
    assert [e.command for e in own] == [h.command for h in blocks.hooks(OLDER)]
    assert schema.check(document) == []
    assert outcome(written, OLDER, refence=False) == written
    assert edit.remove(written, NAME).data == without
    if edit.load(written, NAME).shape == "fenced":
        refreshed = outcome(written, NEWER, refence=False)
        assert refreshed is not None
        assert edit.remove(refreshed, NAME).data == without
        assert outcome(refreshed, OLDER, refence=False) == written


@given(texts)
def test_removed_once_is_removed(text: str) -> None:
    try:
        without = edit.remove(text.encode(), NAME).data
    except SetupError:
        return
    assert without is None or edit.remove(without, NAME).data == without
    assert without is None or edit.load(without, NAME).shape == "absent"
