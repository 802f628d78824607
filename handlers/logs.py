"""What a process writes to its log: one line each, with the request's id, and no content of anybody's.

Our own messages are made of reasons, ids and counts. A traceback can quote a value in its last line, so that
line is kept only for errors whose words are known to be ours or the operating system's.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import TextIO

from handlers import request_ids
from handlers.errors import HandlerError
from handlers.settings import Style
from state.errors import StateError

_KNOWN = (HandlerError, StateError, OSError)
_MOST = 4_000

_Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Lines(logging.Formatter):
    """One record, one line, whatever is in it."""

    def formatException(self, ei: _Info) -> str:
        kind, error, trace = ei
        if error is None or kind is None:
            return ""
        words = f": {error}" if isinstance(error, _KNOWN) else ""
        places = (f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace))
        return f"{kind.__name__}{words} at {' < '.join(reversed(list(places)))}"


class TextLines(_Lines):
    """`LEVEL logger: message [request id]`."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{record.levelname} {record.name}: {record.getMessage()}"]
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        identity = request_ids.current.get()
        if identity is not None:
            parts.append(f"[{identity.decode('ascii')}]")
        return _line(" ".join(parts))


class JSONLines(_Lines):
    """An object a line: `time` (UTC), `level`, `logger`, `message`, maybe `request` and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, str] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_MOST],
        }
        identity = request_ids.current.get()
        if identity is not None:
            said["request"] = identity.decode("ascii")
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)[:_MOST]
        return json.dumps(said, ensure_ascii=True)


def configure(style: Style, level: str, stream: TextIO | None = None) -> None:
    """Send every record of `level` and above to `stream` (stderr), and to nothing else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST])
