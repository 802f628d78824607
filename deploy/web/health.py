"""The link's own health, on a loopback port: one JSON answer, for people and for supervisors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

PORT = 4323
_SECONDS = 5.0
_LONGEST = 8_192


async def serve(port: int, report: Callable[[], dict[str, Any]]) -> asyncio.Server:
    """Answer `GET /healthz` on 127.0.0.1. Raises `OSError` where the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].split(b" ")
                found = len(words) == 3 and words[0] in (b"GET", b"HEAD") and words[1] in (b"/", b"/healthz")
                writer.write(_response(report() if found else None, head=words[0] == b"HEAD"))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port, limit=_LONGEST)


def _response(value: dict[str, Any] | None, *, head: bool) -> bytes:
    body = b'{"error":"not-found"}' if value is None else orjson.dumps(value)
    status = (
        b"404 Not Found" if value is None else b"200 OK" if value.get("ok") else b"503 Service Unavailable"
    )
    headers = (
        b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    return headers if head else headers + body
