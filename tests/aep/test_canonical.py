"""Digests that agree with JavaScript's, and parsing that agrees with `JSON.parse`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.canonical import canonical, digest, number, parse
from handlers.errors import InvalidJSON

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "canonical-json.json").read_text("utf-8"))[
    "cases"
]

TEXT = st.text(st.characters(codec=None), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_javascript_vectors(case: dict[str, Any]) -> None:
    text = case["json"].encode("utf-8", "surrogatepass")
    if "error" in case:
        with pytest.raises(InvalidJSON):
            parse(text)
        return
    value = parse(text)
    assert digest(value) == case["digest"]
    if case["canonical_utf8_hex"]:
        assert canonical(value).hex() == case["canonical_utf8_hex"]


def test_there_are_350_vectors() -> None:
    assert len(VECTORS) == 350


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (100.0, "100"),
        (float("inf"), "null"),
        (float("nan"), "null"),
    ],
)
def test_numbers(value: float, printed: str) -> None:
    assert number(value) == printed


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value: float) -> None:
    assert float(number(value)) == value


_FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**17), 10**17).map(float),
    st.builds(round, st.floats(-1e6, 1e6), st.integers(0, 9)),
    st.builds(lambda digits, power: digits * 10.0**power, st.integers(-9_999, 9_999), st.integers(-30, 25)),
)


@given(st.lists(_FLOATS, min_size=1, max_size=8), st.sampled_from(["", "1.0", "2e5 0.0000001"]))
def test_a_number_is_the_same_in_every_company(values: list[float], text: str) -> None:
    printed = [number(value) for value in values]
    assert canonical([*values, text]).decode() == f"[{','.join(printed)},{json.dumps(text)}]"
    assert [canonical(value).decode() for value in values] == printed


@given(VALUES)
def test_canonical_form_is_stable_and_sorted(value: Any) -> None:
    text = canonical(value)
    assert canonical(parse(text)) == text
    assert digest(value) == hashlib.sha256(text).hexdigest()[:32]


@given(st.dictionaries(TEXT, st.integers(0, 9), max_size=6))
def test_order_of_members_does_not_matter(members: dict[str, Any]) -> None:
    assert canonical(members) == canonical(dict(reversed(members.items())))


def test_keys_sort_by_utf_16() -> None:
    assert canonical({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


def test_lone_surrogates_are_escaped() -> None:
    assert canonical({"\udc00": "\ud800"}) == b'{"\\udc00":"\\ud800"}'
    assert parse(b'"\\ud800"') == "\ud800"


@given(VALUES)
def test_a_value_survives_the_way_through_json(value: Any) -> None:
    text = json.dumps(value).encode()
    assert canonical(parse(text)) == canonical(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b"NaN",
        b"-Infinity",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b'"\n"',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b'"\\u12"',
        b"tru",
        b"\xc2\x85{}",
    ],
)
def test_refuses_what_javascript_refuses(text: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse(text)


def test_reads_as_javascript() -> None:
    assert parse(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert parse(b"9007199254740993") == 9007199254740992.0
    assert parse(b"1e400") == float("inf")
    assert parse(b"-0.0") == 0
    assert isinstance(parse(b"3.0"), int)
    assert parse(b'"\xff\xc3"') == "\ufffd\ufffd"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"":'])
@pytest.mark.parametrize("levels", [201, 5_000, 200_000])
def test_deep_nesting_is_refused_and_nothing_worse(opening: bytes, levels: int) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"":': b"}]"}[opening]
    for text in (opening * levels, opening * levels + b"1" + closing * levels):
        with pytest.raises(InvalidJSON):
            parse(text)


def test_nesting_up_to_the_limit_is_read_and_digested() -> None:
    text = b"[" * 200 + b'"\\ud800"' + b"]" * 200
    assert canonical(parse(text)) == text
    with pytest.raises(InvalidJSON):
        parse(b"[" * 11 + b"]" * 11, max_depth=10)
    assert parse(b"[" * 10 + b"]" * 10 + b" ", max_depth=10)


def test_brackets_in_strings_are_no_nesting() -> None:
    assert parse(json.dumps("[{" * 5000).encode()) == "[{" * 5000


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: Any = "\ud800"
    for _ in range(5000):
        value = [value]
    with pytest.raises(InvalidJSON):
        canonical(value)


@given(st.binary(max_size=64))
def test_any_bytes_give_a_value_or_a_refusal(text: bytes) -> None:
    try:
        value = parse(text)
    except InvalidJSON:
        return
    assert len(digest(value)) == 32
