"""Type names that are legal whatever a vendor says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.names import extension_type, snake
from handlers.aep.registry import is_legal

ANYTHING = st.text(st.characters(codec=None), max_size=400)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("SomeNewKimiHook", "some_new_kimi_hook"),
        ("PreCompact", "pre_compact"),
        ("HTTPServerError", "http_server_error"),
        ("already_snake", "already_snake"),
        ("kebab-case name", "kebab_case_name"),
        ("v2Thing", "v2_thing"),
        ("", "unknown"),
        ("___", "unknown"),
        ("日本語", "unknown"),
        ("a\nb", "a_b"),
    ],
)
def test_snake(name: str, token: str) -> None:
    assert snake(name) == token


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("session", "some_new_kimi_hook"), "x.kimi-code.session.some_new_kimi_hook"),
        (("web", "turn.step.started"), "x.kimi-code.web.turn.step.started"),
        (("initialize",), "x.kimi-code.initialize.event"),
        ((), "x.kimi-code.unknown.event"),
        (("..",), "x.kimi-code.unknown.event"),
    ],
)
def test_extension_type(parts: tuple[str, ...], expected: str) -> None:
    assert extension_type("kimi-code", *parts) == expected


@given(ANYTHING, st.lists(ANYTHING, max_size=5))
def test_always_legal_and_bounded(vendor: str, parts: list[str]) -> None:
    event_type = extension_type(vendor, *parts)
    assert is_legal(event_type)
    assert len(event_type) < 700


@given(ANYTHING)
def test_a_snake_is_one_token(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]{1,64}", snake(name))


def test_long_names_stay_different() -> None:
    assert snake("a" * 5000 + "b") != snake("a" * 5000 + "c")
    assert extension_type("k", "session", *["deep"] * 50 + ["x"]) != extension_type(
        "k", "session", "deep", "x"
    )


@pytest.mark.parametrize(
    ("event_type", "legal"),
    [
        ("tool.requested", True),
        ("run.step.started", True),
        ("tool", False),
        ("banana.peeled", False),
        ("tool.Requested", False),
        ("tool.requested\n", False),
        ("x.acme.foo", False),
        ("x.acme-co.foo.bar", True),
        ("x.acme.foo-bar.baz", False),
    ],
)
def test_legality(event_type: str, legal: bool) -> None:
    assert is_legal(event_type) is legal
