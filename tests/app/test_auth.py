"""Who is let in: tokens, loopback, origins, hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.auth import Gatekeeper
from handlers.errors import Refused, SettingsError
from handlers.settings import Settings
from handlers.tokens import Right, TokenFile, parse_tokens, token_digest

TOKEN = "correct-horse-battery"


def scope(client: str = "127.0.0.1", query: str = "", **headers: str) -> dict[str, Any]:
    merged = {"host": "127.0.0.1:8398"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "type": "http",
        "client": (client, 1234),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in merged.items()],
    }


def gate(**settings: Any) -> Gatekeeper:
    return Gatekeeper(Settings(emitter="here", **settings))


def refusal(gatekeeper: Gatekeeper, scope: dict[str, Any], **options: Any) -> int:
    with pytest.raises(Refused) as caught:
        gatekeeper.admit(scope, options.pop("right", Right.EMIT), **options)
    return caught.value.status


@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_without_a_token_this_machine_is_served(client: str) -> None:
    principal = gate().admit(scope(client), Right.EMIT, posting=True)
    assert (principal.emitter, principal.authenticated) == ("here", False)
    assert not principal.may(Right.ANSWER)


@pytest.mark.parametrize("client", ["192.168.1.5", "10.0.0.1", "::2", "testclient"])
def test_without_a_token_nobody_else_is(client: str) -> None:
    assert refusal(gate(), scope(client)) == 403


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "via", "x_real_ip"])
def test_without_a_token_nothing_comes_through_a_proxy(header: str) -> None:
    assert refusal(gate(), scope(**{header: "1.2.3.4"})) == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8398", "[::1]:8398", "127.0.0.1", "app.localhost:1"]
)
def test_local_names_are_known(host: str) -> None:
    gate().admit(scope(host=host), Right.WATCH)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8398", "127.0.0.1.evil.example", "192.168.1.5"]
)
def test_a_rebound_name_is_not(host: str) -> None:
    assert refusal(gate(), scope(host=host)) == 403
    gate(allowed_hosts=(host.partition(":")[0],)).admit(scope(host=host), Right.WATCH)


def test_a_foreign_page_is_refused() -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://[bad"):
        assert refusal(gate(), scope(origin=origin), posting=True) == 403
        assert refusal(gate(), scope(origin=origin), right=Right.WATCH) == 403
        with_token = scope(origin=origin, authorization=f"Bearer {TOKEN}")
        assert refusal(gate(token=TOKEN), with_token, posting=True) == 403
    gate().admit(scope(origin="http://127.0.0.1:8398"), Right.EMIT, posting=True)


def test_with_a_token_only_its_bearer_is_served() -> None:
    guarded = gate(token=TOKEN)
    for headers in (
        {},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": TOKEN},
        {"authorization": "Bearer é"},
    ):
        assert refusal(guarded, scope(**headers)) == 401
    principal = guarded.admit(scope("203.0.113.9", authorization=f"bearer {TOKEN}"), Right.STEER)
    assert principal.authenticated


def test_a_token_in_the_query_counts_only_where_it_may() -> None:
    guarded = gate(token=TOKEN)
    asked = scope(query=f"live=0&access_token={TOKEN}")
    assert refusal(guarded, asked) == 401
    assert guarded.admit(asked, Right.WATCH, query=True).authenticated


def test_a_token_file_gives_emitters_and_rights(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# team\n\n{token_digest('anna-token')} anna emit,watch laptop of Anna\n")
    guarded = gate(tokens_file=str(path))
    principal = guarded.admit(scope(authorization="Bearer anna-token"), Right.EMIT)
    assert (principal.emitter, principal.label) == ("anna", "laptop of Anna")
    assert refusal(guarded, scope(authorization="Bearer anna-token"), right=Right.STEER) == 403
    assert refusal(guarded, scope()) == 401
    assert guarded.emitters() == {"here", "anna"}


def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("")
    grants = TokenFile(str(path))
    assert grants.find(b"new-token") is None
    path.write_text(f"{token_digest('new-token')} bob steer\n")
    grants.refresh()
    found = grants.find(b"new-token")
    assert found is not None
    assert found.may(Right.ANSWER)
    path.write_text("nonsense\n")
    grants.refresh()
    assert grants.find(b"new-token") is not None
    assert grants.problem is not None


@pytest.mark.parametrize(
    "line",
    [
        "token anna emit",
        "sha256:12 anna emit",
        f"{token_digest('x')} anna",
        f"{token_digest('x')} a/b emit",
        f"{token_digest('x')} anna fly",
    ],
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(SettingsError, match="AEP_TOKENS_FILE: line 2"):
        parse_tokens(f"# first\n{line}\n")
