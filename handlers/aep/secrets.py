"""Finding credentials in free text (AEP-0003 §9.4 a, and well beyond its floor).

Everything here takes linear time on any text: repeats are bounded or possessive, a repeat starts only
where its run starts, and what needs a partner further on (PEM blocks, JWTs) is found by code. Cheap
`in` tests come first, because most text holds nothing of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

SECRET: Final = "[REDACTED:secret]"

_I = re.IGNORECASE

# shapes that are a secret wherever they stand, each behind a literal that text without it never has
_SHAPES: Final = tuple(
    (literal, re.compile(pattern))
    for literals, pattern in (
        (
            "AKIA ASIA ABIA ACCA AGPA AIDA AROA ANPA AIPA",
            r"A(?:KIA|SIA|BIA|CCA|GPA|IDA|ROA|NPA|IPA)[0-9A-Z]{16}",
        ),
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{16,}+"),
        ("github_pat_", r"github_pat_\w{16,}+"),
        (
            "glpat gldt glrt glcbt glptt glft glimt glagent gloas glsoat glsa_ glc_",
            r"(?<![A-Za-z0-9])gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|sa|c)[-_][\w-]{16,}+",
        ),
        ("xox xapp-", r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}+"),
        ("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows)/[\w/]++"),
        ("sk-", r"(?<![A-Za-z0-9])sk-[\w-]{16,}+"),
        ("k_live_ k_test_", r"(?<![A-Za-z0-9])[prs]k_(?:live|test)_\w{8,}+"),
        ("whsec_", r"whsec_[\w+/=]{16,}+"),
        ("AIza", r"AIza[\w-]{30,}+"),
        ("ya29.", r"ya29\.[\w.-]{16,}+"),
        ("GOCSPX-", r"GOCSPX-[\w-]{16,}+"),
        ("npm_", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{30,}+"),
        ("pypi-", r"(?<![A-Za-z0-9])pypi-[\w-]{32,}+"),
        ("SG.", r"(?<![A-Za-z0-9])SG\.[\w-]{16,}+\.[\w-]{16,}+"),
        ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{24,}+"),
        (
            "gsk_ xai- pplx- nvapi- tvly-",
            r"(?<![A-Za-z0-9])(?:gsk_|xai-|pplx-|nvapi-|tvly-)[\w-]{20,}+",
        ),
        ("dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[a-f0-9]{32,}+"),
        ("shpat_ shpss_ shpca_ shppa_", r"shp(?:at|ss|ca|pa)_[a-fA-F0-9]{24,}+"),
        ("sq0", r"sq0[a-z]{3}-[\w-]{20,}+"),
        ("hvs. hvb.", r"(?<![A-Za-z0-9])hv[sb]\.[\w-]{20,}+"),
        ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}+"),
        ("lin_api_", r"lin_api_[A-Za-z0-9]{20,}+"),
        ("ntn_", r"(?<![A-Za-z0-9])ntn_[A-Za-z0-9]{20,}+"),
        ("tskey-", r"tskey-[a-z]++-[\w-]{16,}+"),
        ("ATATT3", r"ATATT3[\w=-]{30,}+"),
        ("dckr_pat_", r"dckr_pat_[\w-]{16,}+"),
        ("PMAK-", r"PMAK-[a-f0-9]{24}-[a-f0-9]{20,}+"),
        (":AA", r"(?<!\d)\d{8,10}:AA[\w-]{32,}+"),
        ("AccountKey= SharedAccessKey=", r"(?<=Key=)[A-Za-z0-9+/]{32,}+={0,2}"),
    )
    for literal in literals.split()
)

_HEADER = re.compile(
    r"(?P<name>\b(?:authorization|x-api-key|x-auth-token)\\{0,8}[\"']?\s{0,8}[=:]\s{0,8}\\{0,8}[\"']?)"
    r"(?:digest\s[^\r\n]*+|[^\r\n\"'\\]++)",
    _I,
)
_COOKIE = re.compile(
    r"(?P<name>\b(?:set-)?cookie\\{0,8}[\"']?\s{0,8}:\s{0,8}\\{0,8}[\"']?)"
    r"[^\s=\"'\\]{1,64}=[^\r\n\"'\\]++",
    _I,
)
_SCHEME = re.compile(
    r"\b(?P<name>bearer\s++|basic\s++(?=[\w+/]{8})(?=[\w+/]{0,256}[0-9=]))"
    r"(?:[\w.~+/-]{8,}+|(?=[\w.~+/-]{0,7}\d)[\w.~+/-]++)=*+",
    _I,
)
# greedy to the last `@` before the path: a password may hold one
_USERINFO = re.compile(r"(?P<name>://(?!\[REDACTED)[^\s/?#:@\"'<>]{0,256}+:)[^\s/?#\"'<>]{1,1024}(?=@)")
_USERINFO_TOKEN = re.compile(r"(?P<name>://)(?!\[REDACTED)[^\s/?#:@\"'<>]{16,1024}+(?=@)")
_NETRC = re.compile(r"(?P<name>\blogin\s{1,8}\S{1,128}\s{1,8}password\s{1,8})\S++", _I)
_CURL = re.compile(r"(?P<name>(?<!\S)(?:-u|--(?:proxy-)?user)[ =]?[\"']?[^\s:\"']{1,128}:)[^\s\"']++", _I)
_SSHPASS = re.compile(r"(?P<name>\bsshpass\s{1,8}-p\s{0,8})(?:[\"'][^\"'\r\n]*+[\"']?|\S++)", _I)

# one expression per rule, behind a word that its matches always hold (in small letters)
_CONTEXTS: Final = (
    ("authorization", _HEADER),
    ("x-api-key", _HEADER),
    ("x-auth-token", _HEADER),
    ("cookie", _COOKIE),
    ("://", _USERINFO),
    ("://", _USERINFO_TOKEN),
    ("login", _NETRC),
    ("-u", _CURL),
    ("sshpass", _SSHPASS),
    ("bearer", _SCHEME),
    ("basic", _SCHEME),
)

_FACT: Final = (
    "count counts limit limits length len type id ids name names usage budget used size file path policy at "
    "expiry expires expiration ttl url uri endpoint required field hint manager store provider env ref kind"
)
_STEMS: Final = (
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "secret",
    "credential",
    "token",
    "key",
    "signature",
    "sig",
)
# with nothing between them and the separator, AEP-0003 §9.4 wants whatever follows replaced
_FLOOR: Final = frozenset({"password", "passwd", "secret", "token", "key"})
_KEY_OWNERS: Final = (
    *("api", "access", "private", "secret", "signing", "encryption", "account", "auth", "shared", "master"),
    *("deploy", "ssh", "service", "license", "subscription", "storage"),
)
_FLAG_BEFORE = re.compile(r"(?<!\S)--?[\w-]{0,40}$")
_ELEMENT_BEFORE = re.compile(r"<[^<>/\s][^<>]{0,40}$|<$")

_SUFFIX: Final = (
    rf"(?P<suffix>s?(?:(?![_-]?(?:{_FACT.replace(' ', '|')})\b)(?:[_-]|(?-i:[0-9A-Z]))[\w-]{{0,40}}+)?)"
)
_QUOTED: Final = (
    r"(?P<esc>\\{1,8}[\"'])(?:(?!\\{1,8}[\"'])[^\r\n])*+(?:\\{1,8}[\"'])?"
    r"|(?P<quote>[\"'`])(?:(?!(?P=quote))(?:[^\\\r\n]|\\.))*+(?P<close>[\"'`]?)"
)
_ASSIGNED = re.compile(
    _SUFFIX
    + r"(?P<sep>(?:\\{0,8}[\"'`])?\]?\)?\s*+(?:=>|:=|==?|:)\s*+)"
    + rf"(?P<value>{_QUOTED}|\S++)"
    # the value of `password: str = "…"` comes after the type
    + r"(?P<typed>[ \t]{0,8}=[ \t]{0,8}(?:\"[^\"\r\n]*+\"?|'[^'\r\n]*+'?|\S++))?",
    _I,
)
_FLAGGED = re.compile(r"(?P<sep>[\w-]{0,20}[ \t]{1,8})(?!-)(?:\"[^\"\r\n]*+\"?|'[^'\r\n]*+'?|\S++)")
_ELEMENT = re.compile(r"(?P<sep>[^<>]{0,40}>)[^<>]++(?=<)")
_NO_SECRET = re.compile(r"[\d.,]{0,12}|true|false|null|none|undefined", _I)

_PEM = re.compile(r"-{4,5} ?(?:(?P<begin>BEGIN)|END) [^\n\r-]{1,64}-{4,5}")
_PEM_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,_-]*+")
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=\\]*+\r?\n?")
_DOTTED = re.compile(r"(?<![\w.-])[\w.-]++", re.ASCII)


def redact_secrets(text: str) -> str:
    """`text` with what looks like a credential replaced by `[REDACTED:secret]`; the name before it stays."""
    if "----" in text:
        text = _without_pem(text)
    lower = text.lower()
    for pattern in [pattern for word, pattern in _CONTEXTS if word in lower]:
        text = pattern.sub(_keep_name, text)
    text = _without_named(text)
    if "eyJ" in text:
        text = _DOTTED.sub(_without_jwt, text)
    for pattern in [pattern for literal, pattern in _SHAPES if literal in text]:
        text = pattern.sub(SECRET, text)
    return text


def _keep_name(match: re.Match[str]) -> str:
    return match["name"] + SECRET


def _without_named(text: str) -> str:
    """Values behind a telling name: `password=x`, `"api_key": "x"`, `--token x`, `<secret>x</secret>`."""
    lower = text.lower()
    if len(lower) != len(text):
        # some letters grow when lowered; the positions below must be those of `text`
        lower = "".join([char.lower() if char.isascii() else char for char in text])
    parts: list[str] = []
    done = 0
    for start, end in sorted(_stems(lower)):
        if start < done or (found := _named(text, start, end)) is None:
            continue
        parts += (text[done : found[0]], found[1])
        done = found[2]
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def _stems(lower: str) -> Iterator[tuple[int, int]]:
    for stem in _STEMS:
        start = lower.find(stem)
        while start >= 0:
            yield start, start + len(stem)
            start = lower.find(stem, start + len(stem))


def _named(text: str, start: int, end: int) -> tuple[int, str, int] | None:
    """Where the value named at `start:end` begins, what replaces it, and where it ends."""
    stem = text[start:end].lower()
    if stem == "key" and not text[max(0, start - 14) : start].lower().rstrip("_. -").endswith(_KEY_OWNERS):
        return None
    if stem == "secret" and text.endswith("[REDACTED:", max(0, start - 10), start):
        return None
    # no suffix begins with a small letter, the plural's aside
    inside = "a" <= text[end : end + 1] <= "z" and text[end] != "s"
    match = None if inside else _ASSIGNED.match(text, end)
    if match and _is_secret(stem, match):
        return match.start("value"), _replacement(match), match.end()
    before = max(0, start - 43)
    if text.find("-", before, start) >= 0 and _FLAG_BEFORE.search(text, before, start):
        match = _FLAGGED.match(text, end)
        if match:
            return match.end("sep"), SECRET, match.end()
    if text.find("<", before, start) >= 0 and _ELEMENT_BEFORE.search(text, before, start):
        match = _ELEMENT.match(text, end)
        if match:
            return match.end("sep"), SECRET, match.end()
    return None


def _is_secret(stem: str, match: re.Match[str]) -> bool:
    if stem in _FLOOR and not match["suffix"]:
        return True
    value: str = match["value"]
    if stem == "pwd" and value.strip("\"'`").startswith(("/", "~", "$(", "C:")):
        return False
    return not _NO_SECRET.fullmatch(value.strip("\"'`\\,;}])"))


def _replacement(match: re.Match[str]) -> str:
    if match["typed"]:
        return SECRET
    if match["esc"]:
        return f"{match['esc']}{SECRET}{match['esc']}"
    if match["quote"] and match["close"] == match["quote"]:
        return f"{match['quote']}{SECRET}{match['quote']}"
    return SECRET


def _without_jwt(match: re.Match[str]) -> str:
    run = match.group()
    if "eyJ" not in run:
        return run
    segments = run.split(".")
    position = 0
    for index, segment in enumerate(segments):
        at = segment.find("eyJ")
        after = segments[index + 1 : index + 3]
        if at >= 0 and after and after[0] and (after[0].startswith("eyJ") or (len(after) > 1 and after[1])):
            return run[: position + at] + SECRET
        position += len(segment) + 1
    return run


def _without_pem(text: str) -> str:
    """PEM blocks cut out; of one whose end or begin is missing, as far as its body reaches."""
    marks = list(_PEM.finditer(text))
    parts: list[str] = []
    done = 0
    followers: list[re.Match[str] | None] = [*marks[1:], None]
    for mark, follower in zip(marks, followers, strict=False):
        if mark.start() < done:
            continue
        if not mark["begin"]:
            start = _body_start(text, done, mark.start())
            end = mark.end()
        elif follower is not None and not follower["begin"]:
            start, end = mark.start(), follower.end()
        else:
            body = _PEM_BODY.match(text, mark.end(), follower.start() if follower else len(text))
            start, end = mark.start(), body.end() if body else mark.end()
        parts += (text[done:start], SECRET)
        done = end
    parts.append(text[done:])
    return "".join(parts)


def _body_start(text: str, floor: int, end: int) -> int:
    """Where the lines of base64 begin that run up to `end`."""
    start = end
    while start > floor:
        line = text.rfind("\n", floor, start - 1) + 1 or floor
        if not _PEM_LINE.fullmatch(text, line, start):
            break
        start = line
    return start


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a member of this name holds a credential: `password`, `GITHUB_TOKEN`, `x-api-key`,
    `clientSecret`; not `max_tokens`, `token_count`, `secretName`."""
    words = [word.lower() for word in _WORDS.findall(_HUMP.sub("_", name[:200]))]
    if not words or words[-1] in _FACT_WORDS:
        return False
    if words[-1] == "token" or not _SECRET_WORDS.isdisjoint(words):
        return True
    return "".join(words).endswith(_SECRET_ENDINGS)


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z0-9]+")
_FACT_WORDS: Final = frozenset(_FACT.split())
_SECRET_WORDS: Final = frozenset(
    {
        *("password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets"),
        *("credential", "credentials", "authorization", "cookie", "cookies"),
    }
)
_SECRET_ENDINGS: Final = (
    *(owner + noun for owner in _KEY_OWNERS for noun in ("key", "keys", "token", "tokens")),
    *("refreshtoken", "sessiontoken", "bearertoken", "idtoken", "password", "passwd"),
)
