"""Whether a relay link of this deployment holds its connection, whichever process it lives in."""

from __future__ import annotations

from state.connection import Client
from state.errors import StateError
from state.keys import Keys
from state.leases import Leases

_NAME = "relay"


class Bound:
    """A mark in Redis that the link renews while it is bound, and that is gone seconds after it is not."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._leases = Leases(client, keys, _NAME)

    async def say(self, ttl_ms: int) -> None:
        """The link is bound, for `ttl_ms` from now. Raises `StateError`."""
        await self._leases.beat(ttl_ms)

    async def clear(self) -> None:
        """It no longer is. Raises `StateError`."""
        await self._leases.hush()

    async def read(self) -> bool:
        """Whether some link is bound; False while Redis does not answer, for a link cannot be either."""
        try:
            return await self._leases.lives(_NAME)
        except StateError:
            return False
