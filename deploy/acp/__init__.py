"""The ACP tee: `aep-kimi acp -- kimi acp [args]` is the agent command of an editor, and is not noticed.

Three processes: the tee moves bytes between the editor and the agent and does nothing else; the agent is
the real one, with the editor's environment, directory and standard error; the observer gets a copy of
the bytes, finds the JSON-RPC frames in it and posts them. A frozen or absent service, or an observer
that dies, costs observations, never the session.

The wire format of `POST {AEP_URL}/frames/acp` is NDJSON (`application/x-ndjson`), in the order in which
the tee saw the frames (a request before its answer), at most 512 lines and about 1 MiB a batch (one longer
line goes alone):

    {"n": 1, "t": 1796050603506, "dir": "c2a", "conn": "9f2c…", "frame": {"jsonrpc": "2.0", …}}

- `n`: the cursor, from 1, rising by one for each line of the wire that was or could have been a frame. A
  gap says how many were lost on the way. A line may be sent again after a doubtful answer: `(conn, n)`
  tells.
- `t`: when the tee had it, in Unix milliseconds.
- `dir`: `c2a` (editor to agent) or `a2c`; `end` for the last line of a connection, whose `frame` is
  `{"exit": code, "lost": frames}` (a negative code is the signal that ended the agent).
- `conn`: random, one for each tee process. JSON-RPC ids are unique within it and a direction.
- `frame`: the JSON-RPC object as it was on the wire. Of a line above 8 MiB only its head is told: method,
  id, `sessionId`, kind and id of an update, without content, and the line has `"cut": true`.

200 takes the batch and says `{"cursors": {conn: n}}`, the last line of each connection that is stored.
Any 2xx takes it. 401, 403, 404, 408, 429 and 5xx are tried again; another 4xx drops the batch.
"""

from __future__ import annotations
