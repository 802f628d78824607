"""Text frames as a server writes them (RFC 6455 §5.2), for servers that take them ready made.

A server that offers the ASGI extension `EXTENSION` on a WebSocket scope takes a `websocket.send` whose member
`frames` holds whole frames. So an event is framed once, however many consumers have it, and what waits for
one of them goes out with one write.
"""

from __future__ import annotations

import json

import orjson

from handlers.aep.levels import JSONObject

EXTENSION = "aep.frames"

_TEXT = 0x81
_SHORT, _LONG = 126, 1 << 16


def framed(payload: bytes) -> bytes:
    """One final text frame. What is not UTF-8 in `payload` is replaced, since a text frame must be."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        payload = payload.decode("utf-8", "replace").encode()
    size = len(payload)
    if size < _SHORT:
        return bytes((_TEXT, size)) + payload
    if size < _LONG:
        return b"%c%c%b%b" % (_TEXT, 126, size.to_bytes(2, "big"), payload)
    return b"%c%c%b%b" % (_TEXT, 127, size.to_bytes(8, "big"), payload)


def dump(frame: JSONObject) -> bytes:
    """A frame's JSON. What it echoes of the other side may hold anything, lone surrogates too."""
    try:
        return orjson.dumps(frame)
    except (TypeError, ValueError):
        return json.dumps(frame, ensure_ascii=True).encode()
