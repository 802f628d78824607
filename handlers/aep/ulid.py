"""ULIDs: 26-character ids that sort by time (https://github.com/ulid/spec)."""

from __future__ import annotations

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_MAX_MS = (1 << 48) - 1
_LOW = (1 << 60) - 1
_RANDOM_BITS = 80
_RANDOM_BYTES = _RANDOM_BITS // 8


def ulid(ms: int, randomness: bytes) -> str:
    """The ULID of Unix time `ms` (milliseconds) and ten random bytes.

    A time outside 48 bits is clamped. Raises ValueError when `randomness` is not ten bytes.
    """
    return _encode(_seed(ms, randomness))


class Mint:
    """Strictly rising ULIDs from one seed, the same ones for the same seed (ULID spec, monotonicity)."""

    __slots__ = ("_next",)

    def __init__(self, ms: int, randomness: bytes) -> None:
        self._next = _seed(ms, randomness)

    def copy(self) -> Mint:
        """A mint that will give the same ids as this one."""
        mint = Mint.__new__(Mint)
        mint._next = self._next
        return mint

    def next(self) -> str:
        """The next id; when the random part is used up it goes on in the following millisecond."""
        value = self._next
        self._next = value + 1
        return _encode(value)


def _seed(ms: int, randomness: bytes) -> int:
    if len(randomness) != _RANDOM_BYTES:
        raise ValueError(f"a ULID needs {_RANDOM_BYTES} random bytes, got {len(randomness)}")
    return min(max(ms, 0), _MAX_MS) << _RANDOM_BITS | int.from_bytes(randomness, "big")


def _encode(value: int) -> str:
    # Written out, in two numbers: every event has one, and a loop over the long one takes twice as long.
    pairs, high, low = _PAIRS, value >> 60, value & _LOW
    return (
        f"{pairs[high >> 60]}{pairs[high >> 50 & 1023]}{pairs[high >> 40 & 1023]}{pairs[high >> 30 & 1023]}"
        f"{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}{pairs[low >> 50]}"
        f"{pairs[low >> 40 & 1023]}{pairs[low >> 30 & 1023]}{pairs[low >> 20 & 1023]}"
        f"{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )
