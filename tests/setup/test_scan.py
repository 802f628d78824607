"""Where statements stand: as tomllib understands the text, whatever strings and comments hold."""

from __future__ import annotations

import tomllib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.setup.document import Document, parse
from deploy.setup.errors import Unreadable
from deploy.setup.scan import Statement, scan
from tests.setup.shapes import KEPT

_PIECES = st.sampled_from(
    [
        *"abc019 \t\n\r\"'\\#[]{}=.,-_",
        '"""',
        "'''",
        "\r\n",
        "[[hooks]]\n",
        "[hooks]\n",
        "hooks = []\n",
        "a = 1\n",
        'b = """\n',
        "c = '''",
        "d = [\n",
        "# x\n",
        'e = "\\""\n',
        "f.g = { h = 1 }\n",
    ]
)


@given(st.lists(_PIECES, max_size=40).map("".join))
def test_all_that_tomllib_reads_is_scanned(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    statements = scan(text)
    assert all(s.line == text.count("\n", 0, s.start) + 1 for s in statements)
    assert all(a.end <= b.start for a, b in pairwise(statements))
    edges = [0, *(edge for s in statements for edge in (s.start, s.end)), len(text)]
    assert not "".join(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)).strip()
    assert _top_keys(statements) == set(data)


def _top_keys(statements: list[Statement]) -> set[str]:
    """The names that the statements put at the top level."""
    names = set()
    inside = False
    for statement in statements:
        if statement.kind in ("table", "array"):
            inside = True
            names.add(statement.path[0])
        elif statement.kind == "key" and not inside:
            names.add(statement.path[0])
    return names


@given(st.lists(_PIECES, max_size=40).map("".join))
def test_a_document_is_made_or_refused_with_a_line(text: str) -> None:
    try:
        document = Document(text)
    except Unreadable as error:
        refused = error.what
    else:
        hooks = document.data.get("hooks")
        assert len(document.entries) == (len(hooks) if isinstance(hooks, list) else 0)
        return
    assert "; " in refused


@pytest.mark.parametrize("name", KEPT)
def test_statements_cover_every_shape(name: str) -> None:
    text = KEPT[name].decode()
    covered = "".join(text[s.start : s.end] for s in scan(text))
    assert "".join(covered.split()) == "".join(text.split())


def test_toml_1_1_is_read() -> None:
    assert parse('a = {\n b = 1,\n}\nc = "\\e\\x41"\nt = 10:00\n')["a"] == {"b": 1}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('a = 1\nb = """x\n\ny', 2, "a string opens here and is never closed"),
        ("a = 1\n\nb = '''x\n", 3, "a string opens here and is never closed"),
        ("a = [\n1,\n", 1, "an array or inline table opens here and is never closed"),
        ("a = [\n'x,\n]", 2, "a string opens here and is never closed"),
        ("= 1\n", 1, "no key or table name stands here"),
        ("a = 1 [b]\nc d\n", 1, "this is not TOML"),
    ],
)
def test_an_unreadable_text_is_refused_where_it_goes_wrong(text: str, line: int, what: str) -> None:
    with pytest.raises(Unreadable) as error:
        Document(text)
    assert (error.value.line, error.value.what[: len(what)]) == (line, what)
