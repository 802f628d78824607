"""Posts batches to the service, one at a time, in order; never raises, never gives up before the end."""

from __future__ import annotations

import http.client
import ssl
import time
from enum import Enum
from urllib.parse import urlsplit

from deploy.acp.outbox import Outbox

PATH = "/frames/acp"
_LINGER_S = 0.05
_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_TRY_AGAIN = frozenset({401, 403, 404, 408, 425, 429})


class Verdict(Enum):
    """What became of a batch."""

    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Delivery:
    """One connection to the service, kept open between batches."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port
        self._path = parts.path.rstrip("/") + PATH
        self._headers = {"Content-Type": "application/x-ndjson", "User-Agent": "aep-kimi-acp"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None

    def run(self, outbox: Outbox, deadline_s: float) -> None:
        """Deliver until the outbox is closed and empty; from the close on, for `deadline_s` at most.

        After the close a failure is final: there is nobody left who could wait.
        """
        pause = _FIRST_PAUSE_S
        until: float | None = None
        while batch := outbox.take(_LINGER_S):
            while True:
                if outbox.closed and until is None:
                    until = time.monotonic() + deadline_s
                left = _TIMEOUT_S if until is None else until - time.monotonic()
                verdict = self.post(b"".join(batch), left) if left > 0 else Verdict.UNKNOWN
                if verdict is Verdict.UNKNOWN and until is not None:
                    return
                if verdict is not Verdict.UNKNOWN:
                    break
                outbox.pause(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            pause = _FIRST_PAUSE_S
            outbox.delivered()
            if verdict is Verdict.REFUSED:
                outbox.lost += len(batch)

    def post(self, body: bytes, timeout_s: float) -> Verdict:
        """One attempt, and a second one where the kept connection had been closed by the service."""
        kept = self._connection is not None
        verdict = self._attempt(body, timeout_s)
        if verdict is None and kept:
            verdict = self._attempt(body, timeout_s)
        return verdict or Verdict.UNKNOWN

    def close(self) -> None:
        """Close the kept connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, body: bytes, timeout_s: float) -> Verdict | None:
        """None: the connection ended before an answer began."""
        connection = self._connection or self._open(timeout_s)
        self._connection = None
        try:
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            connection.close()
            return None
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            return Verdict.UNKNOWN
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        if response.status < 300:
            return Verdict.TAKEN
        if response.status >= 500 or response.status in _TRY_AGAIN:
            return Verdict.UNKNOWN
        return Verdict.REFUSED

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._https:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
