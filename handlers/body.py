"""Request bodies: bounded in size and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from handlers.errors import Refused

_SECONDS = 15.0
_DISCARDED = 8


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes (413) within 15 s (408).

    What is too large is still read for a while, and thrown away: a sender whose connection closes under its
    hands sees a reset instead of the answer.
    """
    if "content-encoding" in request.headers:
        raise Refused(415, "unsupported-encoding", "compressed bodies are not taken")
    declared = request.headers.get("content-length", "")
    keep = not (declared.isdecimal() and int(declared) > limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    keep = False
                    chunks.clear()
                if keep:
                    chunks.append(chunk)
                elif size > limit * _DISCARDED:
                    break
    except TimeoutError:
        raise Refused(408, "timeout", f"the body did not arrive within {_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise Refused(400, "disconnected", "the body ended early") from None
    if not keep:
        raise Refused(413, "payload-too-large", f"the body is larger than AEP_MAX_BODY ({limit} bytes)")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
