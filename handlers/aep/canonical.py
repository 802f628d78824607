"""JSON as JavaScript reads and prints it, and digests over it (AEP-0003 §9.3).

The digests of every AEP emitter in JavaScript are SHA-256 over: keys sorted recursively by UTF-16 code
units, each scalar as `JSON.stringify` prints it. No common Python library prints that (numbers, the
order of astral keys, lone surrogates differ), so C code does what is certain to agree and a walk does
the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Final, NoReturn, cast

import msgspec
import orjson

from handlers.aep.levels import JSONValue
from handlers.errors import InvalidJSON

MAX_DEPTH: Final = 200
_WALK_DEPTH: Final = 300
_SAFE: Final = 1 << 53
_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER

# One pass of C code makes digits `0` and the signs of a float `.`: ten times as fast as a pattern.
_CLASSES: Final = bytes(48 if c in b"0123456789" else 46 if c in b".eE" else 32 for c in range(256))
_LONG_DIGITS: Final = b"0" * 16
_FLOAT: Final = b"0."
# What orjson may print otherwise than JavaScript, in the same way: exponents, whole numbers, very small ones.
_FORMS: Final = bytes(c if c in b"0.e" else 49 if c in b"123456789" else 32 for c in range(256))
_ODD: Final = (b"0e", b"1e", b".0 ", b".000000")
_ASTRAL = re.compile(rb"[\xf0-\xf4]")
_ABOVE_SURROGATES = re.compile(rb"[\xee\xef]")
_ESCAPED = re.compile('[\x00-\x1f"\\\\\ud800-\udfff]')
_SHORT_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


def parse(text: bytes, *, max_depth: int = MAX_DEPTH) -> JSONValue:
    """The value of a JSON text as JavaScript reads it.

    Numbers are doubles (integral ones up to 2^53 come as `int`), the last of two equal keys wins, lone
    surrogates stay, bytes that are not UTF-8 become U+FFFD. Raises InvalidJSON for what `JSON.parse`
    refuses (a byte order mark, NaN, trailing commas, …) and for nesting above `max_depth` levels.
    """
    try:
        value = _parse_fast(text)
        if max_depth < text.count(b"[") + text.count(b"{"):
            _check_depth(value, max_depth)
    except RecursionError:
        raise InvalidJSON(f"nested deeper than {max_depth} levels") from None
    return value


def canonical(value: JSONValue) -> bytes:
    """The canonical JSON of a value, UTF-8; lone surrogates come as escapes. Raises InvalidJSON when it
    is nested too deeply (300 levels)."""
    try:
        text = orjson.dumps(value, option=_SORTED)
    except TypeError:
        return _walk(value)
    if not text.isascii() and _ASTRAL.search(text) and _ABOVE_SURROGATES.search(text):
        return _walk(value)
    if not isinstance(value, str) and _FLOAT in text.translate(_CLASSES) and _odd(text):
        return orjson.dumps(_REPRINT.decode(text), option=orjson.OPT_SORT_KEYS)
    return text


def digest(value: JSONValue) -> str:
    """The first 16 bytes of SHA-256 over the canonical JSON, as 32 hex digits (AEP-0003 §9.3)."""
    return hashlib.sha256(canonical(value)).hexdigest()[:32]


def number(value: float) -> str:
    """A number as JavaScript's `Number::toString` prints it; not finite gives `null`, as in JSON."""
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(float(value)).partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    # the decimal point stands after this many digits
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        power = f"e{point - 1:+d}"
        text = f"{digits[0]}.{digits[1:]}{power}" if len(digits) > 1 else digits + power
    return sign + text


def _double(literal: str) -> JSONValue:
    value = float(literal)
    if -_SAFE <= value <= _SAFE and value.is_integer():
        return int(value)
    return value


def _odd(text: bytes) -> bool:
    """Whether a number in a text of orjson's may not be JavaScript's; what is in a string counts, too."""
    forms = text.translate(_FORMS) + b" "
    return any(form in forms for form in _ODD)


def _reprint(literal: str) -> orjson.Fragment:
    if "e" in literal or ".000000" in literal or literal == "-0.0":
        return orjson.Fragment(number(float(literal)))
    return orjson.Fragment(literal.removesuffix(".0"))


_PARSER: Final = msgspec.json.Decoder(float_hook=_double)
_REPRINT: Final = msgspec.json.Decoder(float_hook=_reprint)


def _parse_fast(text: bytes) -> JSONValue:
    if _LONG_DIGITS not in text.translate(_CLASSES):
        try:
            return cast(JSONValue, _PARSER.decode(text))
        except (msgspec.MsgspecError, ValueError):
            pass
    # what msgspec refuses may still be JSON to JavaScript: lone surrogates, bytes that are not UTF-8
    return _parse_exact(text.decode("utf-8", "replace"))


def _refuse(constant: str) -> NoReturn:
    raise InvalidJSON(f"{constant} is not JSON")


def _parse_exact(text: str) -> JSONValue:
    try:
        return cast(
            JSONValue, json.loads(text, parse_int=_double, parse_float=_double, parse_constant=_refuse)
        )
    except json.JSONDecodeError as error:
        raise InvalidJSON(str(error)) from None


def _check_depth(value: JSONValue, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise InvalidJSON(f"nested deeper than {max_depth} levels")


def _walk(value: JSONValue) -> bytes:
    parts: list[str] = []
    _print(value, parts, 0)
    return "".join(parts).encode("utf-8")


def _print(value: JSONValue, parts: list[str], depth: int) -> None:
    if value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, str):
        parts.append(_string(value))
    elif isinstance(value, int):
        parts.append(str(value) if -_SAFE <= value <= _SAFE else number(_rounded(value)))
    elif isinstance(value, float):
        parts.append(number(value))
    elif depth >= _WALK_DEPTH:
        raise InvalidJSON(f"nested deeper than {_WALK_DEPTH} levels")
    elif isinstance(value, list):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            _print(item, parts, depth + 1)
        parts.append("]")
    else:
        parts.append("{")
        for index, key in enumerate(sorted(value, key=_utf16)):
            parts.append(f",{_string(key)}:" if index else f"{_string(key)}:")
            _print(value[key], parts, depth + 1)
        parts.append("}")


def _rounded(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"
