"""The head of a request, read once: header names in lower case to the first value of each, as bytes."""

from __future__ import annotations

from typing import TypeAlias

from starlette.types import Scope

Head: TypeAlias = "dict[bytes, bytes]"


def head_of(scope: Scope) -> Head:
    """The headers of an HTTP or WebSocket scope; of a name that is there twice the first counts."""
    return dict(reversed([*scope["headers"]]))


def text_of(head: Head, name: bytes) -> str:
    """A header's value, `""` where it is missing."""
    return head.get(name, b"").decode("latin-1")


def media_type(head: Head) -> str:
    """The bare content type of a request, lower case, without parameters."""
    return text_of(head, b"content-type").partition(";")[0].strip().lower()
