"""What the link and its two ways to a relay agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from handlers.settings import Settings
from state.keys import SessionKey


class RelayError(Exception):
    """Something ended the connection to the relay, or kept it from being made."""


class Unconfirmed(RelayError):
    """The relay did not confirm in time what it was sent. It may have it or not."""


class Unwelcome(RelayError):
    """The relay refuses us; only a change of settings helps, on one side or the other."""


class LeaseLate(RelayError):
    """The lease has run out, or will before another word is out: somebody else may be the link now."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An event of a session of ours, as stored."""

    key: SessionKey
    seq: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """The link's patience, in seconds but for what is named otherwise."""

    lease_ms: int = 10_000
    renew: float = 2.5
    margin: float = 0.5
    """What must be left of the lease for a send: what it takes to get out of this process."""
    poll: float = 1.0
    """How often one who is not the link asks for the lease."""
    hello: float = 10.0
    confirm: float = 30.0
    idle: float = 10.0
    """After so long without a word from the relay it is asked whether it is there."""
    beat: float = 1.0
    beat_ttl_ms: int = 3_000
    first_pause: float = 0.25
    longest_pause: float = 30.0
    unwelcome: float = 5.0
    """The shortest pause after a refusal that only a change of settings can lift."""
    steady: float = 5.0
    """A connection that was bound for so long begins the pauses anew."""
    close: float = 0.5


Guard: TypeAlias = Callable[[], None]
"""Raises `LeaseLate` unless this process may still speak."""


class Transport(Protocol):
    """A way to a relay. Every method raises `RelayError` when it cannot do its work."""

    async def open(self) -> None:
        """Reach the relay, and be heard."""

    async def deliver(self, parcels: Sequence[Parcel]) -> None:
        """Send in this order; returns when the relay has confirmed. May be called from several tasks."""

    async def watch(self) -> None:
        """Make sure now and then that the relay is there; ends only by raising."""

    @property
    def heard(self) -> float:
        """When the relay last said something that only one who reads us says, `time.monotonic`."""

    async def close(self, reason: str) -> None:
        """Part in order."""

    def abort(self) -> None:
        """Part at once: what is still in this process is not sent."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a relay is: its base URL, whether it is posted to, and what may be shown of it."""

    base: str
    posting: bool

    @classmethod
    def parse(cls, url: str, *, posting: bool = False) -> Address:
        """From a URL of `ws`, `wss` (the duplex binding), `http` or `https` (posting)."""
        base = url.rstrip("/")
        for ending in ("/socket", "/events"):
            base = base.removesuffix(ending)
        scheme, _, rest = base.partition("://")
        posting = posting or scheme in ("http", "https")
        secure = scheme in ("wss", "https")
        plain = "http" if posting else "ws"
        return cls(f"{plain}{'s' if secure else ''}://{rest}", posting)

    @property
    def endpoint(self) -> str:
        return self.base + ("/events" if self.posting else "/socket")

    @property
    def shown(self) -> str:
        """Without what may be secret in it."""
        parts = urlsplit(self.base)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def exposed(self) -> bool:
        """Whether a token would travel in the clear to another machine."""
        parts = urlsplit(self.base)
        near = {"localhost", "127.0.0.1", "::1"}
        return parts.scheme in ("ws", "http") and parts.hostname not in near


def address_of(settings: Settings, *, posting: bool = False) -> Address | None:
    """The relay of the settings."""
    return None if settings.relay_url is None else Address.parse(settings.relay_url, posting=posting)
