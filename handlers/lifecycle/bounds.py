"""How much of each thing a session's state remembers."""

from __future__ import annotations

LIMIT = 64 * 1024  # bytes of an encoded state
KEPT = 768  # bytes of data of a draft that waits

# How many of each: all but the calls fit into `LIMIT` together, whatever is in them.
CALLS = 256
TOLD = 8
PAST = 144
REQUESTS = 24
RESULTS = 3
FAILURES = 3
HELD = 6
STRAYS = 4
SPAWNS = 24
GATES = 16
CLOSED = 48
QUEUE = 20
CURSORS = 16
TURNS = 8
PROMPTS = 3
FORMS = 4
BEGUN = 48
ORDERS = 8
WORD = 128  # bytes of a name that a gate keeps
COMMAND = 64  # characters of a command's id
