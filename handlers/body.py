"""Request bodies: bounded in size and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from handlers.errors import Refused

_SECONDS = 15.0


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes (413) within 15 s (408).

    A body that declares itself too large is refused before it is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(limit)
    if "content-encoding" in request.headers:
        raise Refused(415, "unsupported-encoding", "compressed bodies are not taken")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "timeout", f"the body did not arrive within {_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise Refused(400, "disconnected", "the body ended early") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def too_large(limit: int) -> Refused:
    """The refusal of a body over the limit."""
    return Refused(413, "payload-too-large", f"the body is larger than AEP_MAX_BODY ({limit} bytes)")
