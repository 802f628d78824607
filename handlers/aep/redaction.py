"""The redaction pipeline (AEP-0003 §9.4): secrets, configured values, home paths, personal data, in that
order. It replaces more than the floor asks for, and takes linear time on hostile text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from handlers.aep.levels import JSONObject, JSONValue
from handlers.aep.secrets import SECRET, is_secret_name, redact_secrets

PII: Final = "[REDACTED:pii]"
_TOO_DEEP: Final = "[REDACTED:depth]"
_MAX_DEPTH: Final = 256
_SHORTEST_SECRET: Final = 4

_USER = r"[^\\/\s\"'`<>|:;,)\]}]++"
_HOMES = re.compile(
    r"/home/[^/\s\"'`<>|:;,)\]}\\]++"
    # names of people may hold spaces where a separator follows
    rf"|/Users/(?:{_USER}(?: {_USER}){{0,3}}(?=[/\\])|{_USER})"
    rf"|[A-Za-z]:(?:\\{{1,4}}|/)(?:[Uu]sers|Documents and Settings)(?:\\{{1,4}}|/)"
    rf"(?:{_USER}(?: {_USER}){{0,3}}(?=[/\\])|{_USER})"
)
_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]++@(?:[\w-]++\.)+[^\W\d_]{2,}")
_DIGITS = re.compile(r"[+(0-9][0-9\s().\-/]{6,}+")
_NUMBER = re.compile(
    r"(?<![\w.-])\d{4}(?P<gap>[ -])\d{4}(?P=gap)\d{4}(?P=gap)\d{4}(?![\w-])"
    r"|(?<![\w+])\+\d{1,3}[\s().\-/]{0,3}(?:\d[\s().\-/]{0,3}){6,13}\d(?!\d)"
    r"|(?<![\w.])\(\d{2,5}\)[\s.\-/]{0,3}\d{3,4}[\s.\-/]{0,2}\d{3,4}(?!\w)"
    r"|(?<![\w.-])(?:1[ .-])?\d{3}[ .-]\d{3}[ .-]\d{4}(?!\w)"
    r"|(?<![\w.-])1[3-9]\d[ -]?\d{4}[ -]?\d{4}(?!\w)"
    r"|(?<![\w.-])(?!\d{1,2}[./-]\d{1,2}[./-]\d{2,4})0[1-9]\d{0,3}[ ./-]{1,2}(?:\d[ ./-]?){5,9}\d(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Redactor:
    """What the operator lists as secret, whose home directories to hide, and whether personal data goes.

    `secrets` are values; those under four characters are ignored, they would shred any text.
    """

    secrets: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    pii: bool = True

    def text(self, s: str) -> str:
        """A text with everything of the four classes replaced. Applying it twice changes nothing more."""
        s = redact_secrets(s)
        if self.secrets and (listed := _listed(self.secrets)):
            # the marker itself may contain a listed word
            s = SECRET.join([listed.sub(SECRET, part) for part in s.split(SECRET)])
        if self.homes and (homes := _homes(self.homes)):
            s = homes.sub("~", s)
        if "/home/" in s or "sers" in s or "Documents and Settings" in s:
            s = _HOMES.sub("~", s)
        if self.pii:
            if "@" in s:
                s = _EMAIL.sub(PII, s)
            s = _without_numbers(s)
        return s

    def value(self, v: JSONValue) -> JSONValue:
        """A JSON value with every string redacted; what stands under a telling name (`password`,
        `--token`, an environment entry) is replaced whole."""
        return self._value(v, 0)

    def _value(self, value: JSONValue, depth: int) -> JSONValue:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= _MAX_DEPTH:
            return _TOO_DEEP
        return self._object(value, depth) if isinstance(value, dict) else self._list(value, depth)

    def _object(self, value: JSONObject, depth: int) -> JSONObject:
        told = value.get("name", value.get("key"))
        named_value = isinstance(told, str) and is_secret_name(told)
        redacted: JSONObject = {}
        for name, member in value.items():
            safe = self.text(name)
            # two keys that were secrets must not swallow each other
            while safe != name and safe in redacted:
                safe += "'"
            hides = is_secret_name(name) or (named_value and name == "value")
            if hides and member is not None and not isinstance(member, bool):
                redacted[safe] = SECRET
            else:
                redacted[safe] = self._value(member, depth + 1)
        return redacted

    def _list(self, value: list[JSONValue], depth: int) -> list[JSONValue]:
        redacted: list[JSONValue] = []
        hides = False
        for item in value:
            if hides and isinstance(item, str) and not item.startswith("-"):
                redacted.append(SECRET)
                hides = False
                continue
            hides = (
                isinstance(item, str) and item.startswith("-") and "=" not in item and is_secret_name(item)
            )
            redacted.append(self._value(item, depth + 1))
        return redacted


def _without_numbers(text: str) -> str:
    """Numbers of phones and cards replaced; looked for only in runs of digits and what parts them."""
    parts: list[str] = []
    done = 0
    for run in _DIGITS.finditer(text):
        for match in _NUMBER.finditer(text, run.start(), run.end() + 1):
            parts += (text[done : match.start()], PII)
            done = match.end()
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


@lru_cache(maxsize=16)
def _listed(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    long = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]
    # as they are, as a JSON string holds them, as a URL does
    dresses = {
        dress
        for secret in long
        for dress in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    } | {quote(secret, safe="", errors="replace") for secret in long}
    known = sorted(dresses, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None


@lru_cache(maxsize=16)
def _homes(homes: tuple[str, ...]) -> re.Pattern[str] | None:
    patterns = []
    for home in sorted(set(homes), key=len, reverse=True):
        bare = home.rstrip("/\\")
        if not bare or re.fullmatch(r"[A-Za-z]:", bare):
            continue
        windows = "\\" in bare
        separator = r"(?:\\{1,4}|/)"
        path = separator.join(map(re.escape, re.split(r"[\\/]", bare))) if windows else re.escape(bare)
        patterns.append(f"(?i:{path})" if windows else path)
    return re.compile(rf"(?:{'|'.join(patterns)})(?![\w.-])") if patterns else None
