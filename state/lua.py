"""Lua scripts: one file each under `scripts/`, called by digest, sent whole to a server that lost them."""

from __future__ import annotations

import hashlib
from importlib.resources import files


class Script:
    """A script of this package. It must work unchanged on Redis 6.2, so it has no `#!lua` line."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = files("state").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
