"""What must never leave the machine, in every dress it wears, and what must be left alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.aep.redaction import PII, Redactor
from handlers.aep.secrets import SECRET, is_secret_name

REDACTOR = Redactor()

# made of parts, so that no scanner takes them for real ones
TOKENS = {
    "OpenAI": "sk" + "-proj-AbCd1234AbCd1234AbCd",
    "Moonshot": "sk" + "-kimi1234567890abcdefghijkl",
    "Anthropic": "sk" + "-ant-api03-AbCd1234-AbCd1234_AbCd",
    "GitHub": "ghp" + "_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "GitHub server": "ghs" + "_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "GitHub fine": "github" + "_pat_11ABCDEFG0123456789_abcdefghij",
    "GitLab": "glpat" + "-AbCdEfGhIjKlMnOpQrSt",
    "Slack bot": "xoxb" + "-123456789012-ABCDEFabcdef",
    "Slack app": "xapp" + "-1-A0123456789-0123456789-abcdef",
    "Slack hook": "https://hooks.slack.com/" + "services/T000/B000/XXXXXXXXXXXX",
    "Google": "AIza" + "SyA1bC2dE3fG4hI5jK6lM7nO8pQ9rS0tUvW",
    "Google OAuth": "ya29" + ".a0AfH6SMBxxxxxxxxxxxxxxxxxxx",
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS session": "ASIA" + "IOSFODNN7EXAMPLE",
    "Stripe": "sk" + "_live_abcdef0123456789",
    "SendGrid": "SG" + ".abcdefghijklmnopqrst.abcdefghijklmnopqrst",
    "npm": "npm" + "_" + "a1" * 18,
    "PyPI": "pypi" + "-" + "AgEIcHlwaS5vcmc" * 4,
    "Hugging Face": "hf" + "_" + "aB3" * 12,
    "Groq": "gsk" + "_" + "aB3" * 12,
    "Vault": "hvs" + "." + "CAESI" * 6,
    "Telegram": "123456789" + ":AA" + "Hd" * 17,
    "age": "AGE-SECRET" + "-KEY-1" + "QP" * 25,
    "JWT": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
    "JWT unsigned": "eyJhbGciOiJub25lIn0" + ".eyJzdWIiOiIxMjM0In0.",
}

FRAMES = [
    "{}",
    "before {} after",
    "line\n{}\nline",
    '{{"x": "{}"}}',
    '"{{\\"x\\": \\"{}\\"}}"',
    "({})",
    "KEY_{}",
    "a={};b",
    "/path/{}/x",
    "https://host/{}?x=1",
]


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_tokens_wherever_they_stand(token: str, frame: str) -> None:
    redacted = REDACTOR.text(frame.format(token))
    assert token not in redacted
    assert token[8:] not in redacted
    assert SECRET in redacted


NAMED = [
    ("password=hunter2", "hunter2"),
    ("PASSWORD = hunter2", "hunter2"),
    ("passwd:hunter2", "hunter2"),
    ("my_token=12", "12"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalr"),
    ("export GITHUB_TOKEN='abc def'", "abc def"),
    ('{"password": "correct horse", "n": 1}', "correct horse"),
    ('{"apiKey":"zz11","n":1}', "zz11"),
    ('{\\"password\\": \\"zz11\\", \\"n\\": 1}', "zz11"),
    ('{\\\\\\"password\\\\\\": \\\\\\"zz11\\\\\\"}', "zz11"),
    ('"client_secret" : "zz\\"11"', "zz"),
    ("password: 'un-closed quote", "closed"),
    ('password: str = "hunter2"', "hunter2"),
    ('os.environ["API_KEY"] = "zz11"', "zz11"),
    ("config['api-key']='zz11'", "zz11"),
    ("secret => 'zz11'", "zz11"),
    ("token := zz11", "zz11"),
    ("private key: zz11", "zz11"),
    ("token=\n  zz11", "zz11"),
    ("mysql --password hunter2 db", "hunter2"),
    ("tool --api-key zz11 --verbose", "zz11"),
    ("tool --token='zz 11'", "zz 11"),
    ("curl -u bob:hunter2 https://x", "hunter2"),
    ("curl --user bob:hunter2", "hunter2"),
    ("sshpass -p hunter2 ssh host", "hunter2"),
    ("machine h login bob password hunter2", "hunter2"),
    ("<password>hunter2</password>", "hunter2"),
    ('<secret name="x">zz11</secret>', "zz11"),
    ("postgres://bob:hunter2@db/x", "hunter2"),
    ("redis://:hunter2@db", "hunter2"),
    ("https://bob:hun@ter2@host/x", "ter2"),
    ("https://0123456789abcdef0123@host/x", "0123456789abcdef"),
    ("Authorization: Basic Ym9iOmh1bnRlcjI=", "Ym9i"),
    ("-H 'authorization: Bearer abc' -v", "abc"),
    ('Authorization: Digest username="bob", response="abc123"', "abc123"),
    ('"Authorization": "Token abc123"', "abc123"),
    ("Cookie: sid=abc123; theme=dark", "abc123"),
    ("set-cookie: sid=abc123", "abc123"),
    ("X-Api-Key: zz11", "zz11"),
    ("Bearer abcdefgh", "abcdefgh"),
    ("bearer a1", "a1"),
    ("?access_token=zz11&x=1", "zz11"),
    ("&X-Amz-Signature=zz11", "zz11"),
    ("AccountName=x;AccountKey=" + "Ab1" * 20, "Ab1Ab1"),
    ("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----", "MIIabc"),
    ("-----BEGIN RSA PRIVATE KEY-----\\nMIIabc\\nDEF", "MIIabc"),
    ("x\nMIIabc\nDEFghi==\n-----END PRIVATE KEY-----\ny", "MIIabc"),
    ("-----BEGIN A-----\nMIIabc\n-----BEGIN B-----\nDEF\n-----END B-----", "MIIabc"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQdGBF\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----", "lQdGBF"),
]


@pytest.mark.parametrize(("text", "secret"), NAMED, ids=[text[:40] for text, _ in NAMED])
def test_named_secrets(text: str, secret: str) -> None:
    redacted = REDACTOR.text(f"before {text}")
    assert secret not in redacted
    assert redacted.startswith("before ")
    assert SECRET in redacted


@pytest.mark.parametrize(
    "text",
    [
        "ran 42 tests, 0 failures, in 3.1s",
        "max_tokens=4096 tokens: 12 input_tokens=55",
        '"token_count": 180000, "token_type": "x"',
        "the key point: monkey: banana",
        "the bearer of good news arrived",
        "basic understanding of it",
        "PWD=/srv/project",
        "2026-11-30 16:37:13.123 and 30.11.2026 and 01-02-2026 12:30",
        "upgraded to node 22.11.0, pnpm 9.14.2, at 10.0.0.1:8080",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "uuid 01234567-89ab-cdef-0123-456789abcdef",
        "took 1764520633123 ms, 1764520633 s, 12345678 bytes",
        "git push -u origin main",
        "secretary general, tokenizer: none",
        "@decorator and user@host and a@b",
        "risk-assessment-of-everything-else",
        "",
    ],
)
def test_left_alone(text: str) -> None:
    assert REDACTOR.text(text) == text


@pytest.mark.parametrize(
    "number",
    [
        "+1 (555) 123-4567",
        "+49 30 1234567",
        "+8613812345678",
        "138 1234 5678",
        "13812345678",
        "(02) 9999 9999",
        "555-123-4567",
        "06 12 34 56 78",
        "0171 2345678",
        "4111 1111 1111 1111",
    ],
)
def test_phones_and_cards(number: str) -> None:
    assert REDACTOR.text(f"call {number} now") == f"call {PII} now"
    assert Redactor(pii=False).text(number) == number


@pytest.mark.parametrize(
    "address", ["jane.doe+x@example.co.uk", "jürgen@bücher.example", "a_b@sub.domain.org"]
)
def test_mail(address: str) -> None:
    assert REDACTOR.text(f"<{address}>") == f"<{PII}>"
    assert Redactor(pii=False).text(address) == address


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("/home/alice/x", "~/x"),
        ("/Users/Jane Doe/x", "~/x"),
        ("file:///home/alice/x", "file://~/x"),
        ("PATH=/home/a/bin:/home/b/bin", "PATH=~/bin:~/bin"),
        ("C:\\Users\\John Smith\\x", "~\\x"),
        ("C:\\\\Users\\\\bob\\\\x", "~\\\\x"),
        ("/srv/op/x /srv/op", "~/x ~"),
        ("/srv/opera", "/srv/opera"),
        ("D:\\Data\\Op\\x", "~\\x"),
        ("d:/data/op/x", "~/x"),
    ],
)
def test_homes(text: str, hidden: str) -> None:
    assert Redactor(homes=("/srv/op", "D:\\Data\\Op\\", "/", "C:\\", "")).text(text) == hidden


def test_configured_secrets() -> None:
    redactor = Redactor(secrets=("deploy-key-1", "deploy-key-1-long", "abc", "", "REDACTED", "a.b*c"))
    assert redactor.text("x deploy-key-1-long y") == f"x {SECRET} y"
    assert redactor.text("abc a.b*c aXbXc") == f"abc {SECRET} aXbXc"
    dressed = Redactor(secrets=('pä"ss/w rd',))
    for text in ('a pä"ss/w rd b', 'a pä\\"ss/w rd b', 'a p\\u00e4\\"ss/w rd b', "a p%C3%A4%22ss%2Fw%20rd b"):
        assert dressed.text(text) == f"a {SECRET} b"
    assert redactor.text("password=x REDACTED") == f"password={SECRET} {SECRET}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"token": "plain", "kind": "auth"}, {"token": SECRET, "kind": "auth"}),
        ({"a": {"API_KEY": "x", "n": 1}}, {"a": {"API_KEY": SECRET, "n": 1}}),
        ({"credentials": {"user": "x"}}, {"credentials": SECRET}),
        ({"password": 1234}, {"password": SECRET}),
        ({"password": None, "secret": True}, {"password": None, "secret": True}),
        ({"max_tokens": 5, "token_count": 3}, {"max_tokens": 5, "token_count": 3}),
        (["--password", "x", "y"], ["--password", SECRET, "y"]),
        (["--password", "--verbose", "y"], ["--password", "--verbose", "y"]),
        (["-H", "Authorization: Basic abc"], ["-H", f"Authorization: {SECRET}"]),
        ([{"name": "API_KEY", "value": "x"}], [{"name": "API_KEY", "value": SECRET}]),
        ([{"name": "HOST", "value": "x"}], [{"name": "HOST", "value": "x"}]),
        ({"Bearer abcdefgh": 1, "Bearer zyxwvuts": 2}, {f"Bearer {SECRET}": 1, f"Bearer {SECRET}'": 2}),
        ([1, 2.5, True, None], [1, 2.5, True, None]),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    assert REDACTOR.value(value) == expected


@pytest.mark.parametrize(
    "name",
    [
        "password", "DB_PASSWORD", "githubToken", "x-api-key", "clientSecret", "Authorization", "set-cookie",
        "accessToken", "private_key", "awsSecretAccessKey", "refresh_token", "ssh-key", "dbpassword",
    ],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "keys",
        "tokens",
        "max_tokens",
        "token_count",
        "tokenizer",
        "secretName",
        "monkey",
        "",
        "path",
        "pass",
    ],
)
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


def test_deep_values_end_somewhere() -> None:
    value: Any = "password=x"
    for _ in range(5000):
        value = {"a": [value]}
    assert "password=x" not in repr(REDACTOR.value(value))


@given(st.text(st.characters(codec=None), max_size=60), st.sampled_from(list(TOKENS.values())))
def test_a_token_between_any_text(noise: str, token: str) -> None:
    assert token not in REDACTOR.text(f"{noise} {token} {noise}")


WORDS = ["password", "token", "secret", "Bearer ", "eyJ", "://", "-----BEGIN X-----", "/home/", "sk-", "key"]


@given(st.lists(st.sampled_from([*"ab1 .:=\"'\\-_@/<>[]()+\n", *WORDS]), max_size=40).map("".join))
def test_any_text_stays_a_text(text: str) -> None:
    assert isinstance(REDACTOR.text(text), str)


HOSTILE = [
    "a", "password", "secret ", "token", "key", "key\\", "pwd", "api_key", "eyJ", "eyJ.", "-eyJ-", "sk-",
    "SG.", "-----BEGIN A KEY-----", "-----END A KEY-----\n", "A" * 64 + "\n", "@", "a@", "a@a.",
    "://", "://a:", "://a:b@",
    "1 ", "0171 ", "+1", "(12)", "1-2-3.", "/Users/", "/Users/a ", "C:\\Users\\", '"', '\\"', 'password=\\"',
    'password="', "token\n", "authorization", "authorization:", "cookie: a=", "bearer ", "basic ", "-u ",
    "--password ", "<", "<secret", "<secret>", SECRET, "login ", "sshpass -p", "tskey-", "secret" + "\\" * 9,
    " ", "\n", "é", "\ud800", "%", ".",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """Eight times the text may cost thrice eight times the processor time, far from the 64 of a square."""

    def seconds(size: int) -> float:
        text = "x" + unit * (size // len(unit)) + " !"
        started = time.process_time()
        REDACTOR.text(text)
        return time.process_time() - started

    small = max(seconds(25_000), 0.004)
    assert seconds(200_000) < 24 * small


def test_a_megabyte_of_prose_is_left_alone() -> None:
    text = "normal words, a number 12.5, and more of it " * 25_000
    assert REDACTOR.text(text) == text
