"""The copy of the bytes, from the tee to its observer: records of `kind, time, length, payload`."""

from __future__ import annotations

import struct
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


class Records:
    """Reads records from a stream of bytes, however they are cut. A torn record at the end is none."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Record]:
        """The records that are complete now."""
        data = self._rest + data
        found: list[Record] = []
        at = 0
        while len(data) - at >= HEADER.size:
            kind, time_ms, length = HEADER.unpack_from(data, at)
            start = at + HEADER.size
            if len(data) - start < length:
                break
            at = start + length
            body = data[start:at]
            if kind <= Kind.TO_CLIENT:
                found.append(Record(Kind(kind), time_ms, body))
            else:
                found.append(Record(Kind(kind), time_ms, number=_NUMBER.unpack(body)[0]))
        self._rest = data[at:]
        return found
