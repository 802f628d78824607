"""Request bodies: bounded in size and in time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Receive

from handlers.errors import Refused
from handlers.head import Head, head_of
from handlers.limit import Limit

_SECONDS = 15.0
_DISCARDED = 8


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body of a request; see `receive_body`."""
    return await receive_body(head_of(request.scope), request.receive, limit)


async def receive_body(head: Head, receive: Receive, limit: int) -> bytes:
    """The whole body, at most `limit` bytes (413) within 15 s (408).

    What is too large is still read for a while, and thrown away: a sender whose connection closes under its
    hands sees a reset instead of the answer.
    """
    if b"content-encoding" in head:
        raise Refused(415, "unsupported-encoding", "compressed bodies are not taken")
    declared = head.get(b"content-length", b"")
    keep = not (declared.isdigit() and int(declared) > limit)
    chunks: list[bytes] = []
    size = 0
    try:
        with Limit(_SECONDS):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "disconnected", "the body ended early")
                chunk: bytes = message.get("body", b"")
                more = message.get("more_body", False)
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
    if not keep:
        raise Refused(413, "payload-too-large", f"the body is larger than AEP_MAX_BODY ({limit} bytes)")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
