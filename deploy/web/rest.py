"""The few REST calls of a link, to one server of Kimi Code.

Reading a list loads nothing there; a snapshot, an approval and an abort load a session that is not live, so
they are only for sessions whose frames flow (kimi-code 2.1.0). What an error says (it may hold paths and
stacks of the server) stays unread: its code is all that leaves this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from deploy.web.errors import RestError, Strange, Unauthorized
from deploy.web.home import Address

JSON = dict[str, Any]

_SECONDS = 5.0
_PAGE = 50
_ASK_KEYS = (
    "approval_id",
    "question_id",
    "agent_id",
    "turn_id",
    "tool_call_id",
    "tool_name",
    "action",
    "questions",
    "created_at",
)


class Rest:
    """REST under one address, with whatever token the home has now."""

    def __init__(self, address: Address, token: Callable[[], str | None]) -> None:
        self._address = address
        self._token = token
        self._client = httpx2.AsyncClient(
            timeout=_SECONDS, trust_env=False, follow_redirects=False, limits=httpx2.Limits(max_connections=8)
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def recognise(self) -> None:
        """See that a server of Kimi Code is there, without showing it the token. Raises `LinkError`."""
        answer = await self._send("GET", "/healthz", authorized=False)
        if answer.status_code != 200 or not isinstance(_value(answer), dict):
            raise Strange
        if _value(answer).get("code") != 0:
            raise Strange

    async def refused(self) -> bool:
        """Whether the port takes no connections, which says that the server is ending."""
        try:
            async with asyncio.timeout(_SECONDS):
                _, writer = await asyncio.open_connection(self._address.host, self._address.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    async def sessions(self) -> list[JSON]:
        """The sessions that changed last."""
        data = await self._call("GET", f"/sessions?page_size={_PAGE}")
        items = data.get("items")
        return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []

    async def session(self, session: str) -> JSON:
        """One session."""
        return await self._call("GET", f"/sessions/{_part(session)}")

    async def snapshot(self, session: str) -> JSON:
        """Where a live session stands, as the service wants it: no message, no text of the turn."""
        data = await self._call("GET", f"/sessions/{_part(session)}/snapshot")
        turn = data.get("in_flight_turn")
        return {
            "link": "snapshot",
            "session_id": session,
            "epoch": data.get("epoch"),
            "seq": data.get("as_of_seq"),
            "running": isinstance(turn, dict),
            "turn": turn.get("turn_id") if isinstance(turn, dict) else None,
            "approvals": _asks(data.get("pending_approvals")),
            "questions": _asks(data.get("pending_questions")),
        }

    async def decide(self, session: str, approval: str, decision: str, feedback: str | None) -> bool:
        """Resolve an approval; False when somebody or something else has."""
        body: JSON = {"decision": decision}
        if feedback:
            body["feedback"] = feedback
        path = f"/sessions/{_part(session)}/approvals/{_part(approval)}"
        return (await self._call("POST", path, body)).get("resolved") is True

    async def abort(self, session: str) -> bool:
        """Cancel the main agent's turn as a user would."""
        return (await self._call("POST", f"/sessions/{_part(session)}:abort", {})).get("aborted") is True

    async def _call(self, method: str, path: str, body: JSON | None = None) -> JSON:
        answer = await self._send(method, path, body)
        if answer.status_code in (401, 403, 429):
            raise Unauthorized
        value = _value(answer)
        code = value.get("code") if isinstance(value, dict) else None
        if answer.status_code != 200 or code != 0:
            known = isinstance(code, int) and not isinstance(code, bool)
            raise RestError(code if known and code is not None else answer.status_code, sent=True)
        data = value.get("data")
        return data if isinstance(data, dict) else {}

    async def _send(
        self, method: str, path: str, body: JSON | None = None, *, authorized: bool = True
    ) -> httpx2.Response:
        token = self._token() if authorized else None
        if authorized and token is None:
            raise Unauthorized
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            return await self._client.request(method, self._address.base + path, json=body, headers=headers)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            raise RestError(0, sent=False) from None
        except (httpx2.HTTPError, OSError):
            raise RestError(0, sent=True) from None


def _value(answer: httpx2.Response) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


def _part(name: str) -> str:
    return quote(name, safe="")


def _asks(items: Any) -> list[JSON]:
    """Pending requests with the fields that their frames have, too."""
    listed = [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
    return [{key: one[key] for key in _ASK_KEYS if key in one} for one in listed]
