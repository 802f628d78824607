"""The frames of one session, put in their order: each number once, and no gap unnoticed.

A server sends what a subscriber missed before it acknowledges the subscription, and some frames to everybody
without one; so while an acknowledgement is awaited a frame may come too early (kimi-code 2.1.0).
"""

from __future__ import annotations

from dataclasses import dataclass, field

HELD_FRAMES = 2_000
HELD_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Sequence:
    """Where a session stands. `seq` None: nothing is known, and nothing goes on before `start`."""

    epoch: str | None = None
    seq: int | None = None
    waiting: bool = True
    paused: bool = False
    halted: bool = False
    broken: bool = False
    """A gap, another epoch, or more than can be held: what was missed must be asked for again."""
    _held: dict[int, tuple[str | None, bytes]] = field(default_factory=dict)
    _size: int = 0

    def take(self, epoch: str | None, seq: int, raw: bytes) -> list[bytes]:
        """One frame as it arrives; the frames that may go on now."""
        if self.halted:
            return []
        if self.seq is None or self.paused:
            self._hold(epoch, seq, raw)
            return []
        if self.epoch is None:
            self.epoch = epoch
        if epoch != self.epoch:
            self.broken = True
            return []
        if seq <= self.seq:
            return []
        if seq > self.seq + 1:
            self._hold(epoch, seq, raw)
            self.broken = self.broken or not self.waiting
            return []
        self.seq = seq
        return [raw, *self._next()]

    def acknowledged(self, epoch: str | None, seq: int | None) -> list[bytes]:
        """All that the server had to say up to `seq` has been said; the frames that may go on now."""
        self.waiting = False
        if self.seq is None:
            return []
        self.epoch = self.epoch or epoch
        ready = self._next()
        short = seq is not None and seq > self.seq
        self.broken = bool(self._held) or short or (epoch is not None and epoch != self.epoch)
        return ready

    def pause(self) -> None:
        """A snapshot is asked for: hold what comes until it is there."""
        self.paused = True

    def resume(self) -> list[bytes]:
        """Nothing was missed: the frames that were held meanwhile."""
        self.paused = False
        ready = self._next()
        self.broken = bool(self._held)
        return ready

    def start(self, epoch: str | None, seq: int) -> list[bytes]:
        """A snapshot stands at `seq`; the frames after it that were held."""
        if self.epoch == epoch and self.seq is not None:
            seq = max(seq, self.seq)
        self.epoch, self.seq = epoch, seq
        self.waiting = self.paused = self.broken = False
        for early in [number for number, (other, _) in self._held.items() if number <= seq or other != epoch]:
            self._drop(early)
        ready = self._next()
        self.broken = bool(self._held)
        return ready

    def again(self, epoch: str | None, seq: int | None) -> None:
        """What comes after `seq` is asked for again."""
        self.epoch, self.seq, self.waiting = epoch, seq, True
        self.paused = self.halted = self.broken = False
        self._held.clear()
        self._size = 0

    def halt(self) -> None:
        """Let everything go until it is asked for again."""
        self.again(None, None)
        self.halted = self.broken = True

    def _next(self) -> list[bytes]:
        ready = []
        while self.seq is not None and self.seq + 1 in self._held:
            self.seq += 1
            ready.append(self._drop(self.seq))
        return ready

    def _hold(self, epoch: str | None, seq: int, raw: bytes) -> None:
        if seq in self._held:
            return
        if len(self._held) >= HELD_FRAMES or self._size + len(raw) > HELD_BYTES:
            self.broken = True
            return
        self._held[seq] = (epoch, raw)
        self._size += len(raw)

    def _drop(self, seq: int) -> bytes:
        _, raw = self._held.pop(seq)
        self._size -= len(raw)
        return raw
