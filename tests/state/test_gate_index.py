"""The index of held gates: read in pages, and whole."""

from __future__ import annotations

from state.connection import Client
from state.gates import Gates, mark
from state.keys import Keys, SessionKey
from state.link import Argument

KEY = SessionKey("host", "s/1")


async def pages(client: Client, keys: Keys) -> list[int]:
    """The sizes of the pages, once each entry is what was written."""
    sizes = []
    async for page in Gates(client, keys).waiting(0):
        sizes.append(len(page))
        for entry in page:
            assert (entry.holder, entry.key) == ("proc", KEY)
            assert entry.decided == entry.ticket.endswith("7")
    return sizes


async def test_thousands_come_in_pages(client: Client, keys: Keys) -> None:
    assert await pages(client, keys) == [0]
    at = keys.shard(0, "gates")
    seen = set()
    for start in range(0, 5_000, 1_000):
        fields: list[Argument] = []
        for number in range(start, start + 1_000):
            made = mark(f"proc.{number}", "decided" if number % 10 == 7 else "open", 1_700_000_000_000, KEY)
            assert made.value is not None
            fields += [made.name, made.value]
        await client.call(at, "HSET", at, *fields)
    await client.call(at, "PEXPIRE", at, 60_000)
    sizes = await pages(client, keys)
    assert sum(sizes) >= 5_000
    assert max(sizes) < 2_500
    async for page in Gates(client, keys).waiting(0):
        seen |= {entry.ticket for entry in page}
    assert seen == {f"proc.{number}" for number in range(5_000)}
