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
_KEY_SECRET_ENDINGS)


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z0-9]+")
_FACT_WORDS: Final = frozenset(_FACT.split())
_SECRET_WORDS: Final = frozenset(
    {
        *("password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets"),
        *("credential", "credentials", "authorization", "cookie", "cookies"),
    }
)
_OWNERS: Final = (
    *("api", "access", "private", "secret", "signing", "encryption"),
    *("auth", "account", "shared", "master", "deploy", "ssh"),
)
_SECRET_ENDINGS: Final = (
    *(owner + noun for owner in _KEY_OWNERS for noun in ("key", "keys", "token", "tokens")),
    *("refreshtoken", "sessiontoken", "bearertoken", "idtoken", "password", "passwd"),
)
