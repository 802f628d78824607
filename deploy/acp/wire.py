"""The copy of the bytes, from the tee to its observer: records of `kind, time, length, payload`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct("<BQI")
_NUMBER = struct.Struct("<q")


class Kind(IntEnum):
    """What a record holds."""

    TO_AGENT = 0
    TO_CLIENT = 1
    LOST_TO_AGENT = 2
    LOST_TO_CLIENT = 3
    END = 4


@dataclass(frozen=True, slots=True)
class Record:
    """`time_ms` is Unix milliseconds; `payload` the bytes of the wire, empty for the other kinds."""

    kind: Kind
    time_ms: int
    payload: bytes = b""
    number: int = 0


def encode(record: Record) -> tuple[bytes, bytes]:
    """Header and payload; `number` (lost line ends, an exit code) travels as the payload."""
    body = record.payload if record.kind <= Kind.TO_CLIENT else _NUMBER.pack(record.number)
    return HEADER.pack(record.kind, record.time_ms, len(body)), body


def decode(read: Callable[[int], bytes]) -> Record | None:
    """The next record of a blocking reader, None at the end of the stream or within a torn record."""
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    kind, time_ms, length = HEADER.unpack(header)
    body = read(length)
    if len(body) < length:
        return None
    if kind <= Kind.TO_CLIENT:
        return Record(Kind(kind), time_ms, body)
    return Record(Kind(kind), time_ms, number=_NUMBER.unpack(body)[0])
