"""File names from what other machines call their sessions (AEP-0003 §9.6: producer-controlled input).

    {host}/{agent}/{session}.jsonl        the file that grows
    {host}/{agent}/{session}~1.jsonl      an older part, the lowest number first

`host` is the authority of the event's source, so that two machines' sessions of one name stay apart.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from handlers.aep.levels import JSONObject

SUFFIX = ".jsonl"

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_LONGEST = 120
_KEPT = 80
# What some systems take for a device, whatever its suffix.
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")


def safe(name: str) -> str:
    """A file name that stands for `name` alone: what is not plain is percent-encoded, what is long is cut.

    It begins with a letter, a digit or `%`, and never holds `~`, which marks parts and cut names.
    """
    encoded = "".join(
        character
        if character in _PLAIN
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in name
    )
    if not encoded:
        return "%"
    if encoded[0] in "_-." or _DEVICES.match(encoded):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) > _LONGEST:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        encoded = f"{encoded[:_KEPT]}~{digest}"
    return encoded


def folder(event: JSONObject) -> tuple[str, str]:
    """Host and agent of an event."""
    try:
        host = urlsplit(str(event.get("source"))).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    agent = event.get("agent")
    return safe(host) if host else "_", safe(agent) if isinstance(agent, str) and agent else "_"


def path_of(event: JSONObject) -> str:
    """The file of an event, relative, with `/`."""
    host, agent = folder(event)
    session = event.get("session")
    name = safe(session) if isinstance(session, str) and session else "_agent"
    return f"{host}/{agent}/{name}{SUFFIX}"


def part(path: str, number: int) -> str:
    """The name of an older part of a file."""
    return f"{path.removesuffix(SUFFIX)}~{number}{SUFFIX}"
