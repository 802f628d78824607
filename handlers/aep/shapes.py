"""How a payload field is described: its kind of value, and the capture level it needs (AEP-0002 §5).

A `Shape` serves both ends: gating asks for levels, validation for kinds. The builders at the end keep the
registry readable as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from handlers.aep.levels import Capture

Kind = Literal["any", "string", "integer", "number", "boolean", "object", "array", "object|string"]

_PLAIN: Mapping[str, type] = {"string": str, "boolean": bool}


@dataclass(frozen=True, slots=True)
class Shape:
    """One field of a payload, or one element of an array.

    `words` are the values of a closed set (AEP-0002 calls them enum), empty when the set is open.
    `minimum` and `maximum` bound numbers. `needed_with` lists pairs of (member, value, other member):
    when the member has that value, the other one is required.
    """

    kind: Kind = "any"
    level: Capture = Capture.METADATA
    required: bool = False
    words: frozenset[str] = frozenset()
    minimum: int | None = None
    maximum: int | None = None
    fields: Mapping[str, Shape] = field(default_factory=dict)
    items: Shape | None = None
    needed_with: tuple[tuple[str, str, str], ...] = ()
    needed: int = field(init=False, compare=False, repr=False, default=0)
    plain: type | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        # Found out once, for the path of every event: how many members are required, and the type whose
        # every value fits.
        object.__setattr__(self, "needed", sum(member.required for member in self.fields.values()))
        if not self.words and self.kind in _PLAIN:
            object.__setattr__(self, "plain", _PLAIN[self.kind])

    @property
    def req(self) -> Shape:
        """The same field, required."""
        return replace(self, required=True)

    @property
    def redacted(self) -> Shape:
        """The same field, from `redacted` up."""
        return replace(self, level=Capture.REDACTED)

    @property
    def full(self) -> Shape:
        """The same field, only at `full`."""
        return replace(self, level=Capture.FULL)


def one_of(*words: str) -> Shape:
    """A field with a closed set of words."""
    return Shape(words=frozenset(words))


def obj(fields: Mapping[str, Shape] | None = None, /, **more: Shape) -> Shape:
    """An open object with the known members `fields` and `more`."""
    return Shape("object", fields={**(fields or {}), **more})


def list_of(items: Shape | None = None) -> Shape:
    """An array; every element has the shape `items`."""
    return Shape("array", items=items)


STRING = Shape("string")
BOOLEAN = Shape("boolean")
NUMBER = Shape("number")
INTEGER = Shape("integer")
COUNT = Shape("integer", minimum=0)
AMOUNT = Shape("number", minimum=0)
