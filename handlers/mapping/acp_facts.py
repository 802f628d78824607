"""What the reducer and the frame handler may know of an ACP moment: ids and machine words.

`tool_title` is the one exception: the tool's name of the record is the first title seen (AEP-0002 A.13).
"""

from __future__ import annotations

from handlers.aep.levels import JSONObject, JSONValue
from handlers.mapping.fields import count, digest_of, name, table, text, token


def facts(kind: str, method: str, body: JSONObject, asked: JSONObject) -> JSONObject:
    """The facts of one moment; a fact is absent when its field is absent or of the wrong kind."""
    found: JSONObject = {"event": method, "kind": kind}
    if method == "session/update":
        _update(found, table(body.get("update")))
    elif method == "session/request_permission":
        _keep(
            found,
            "tool_call_id",
            text(table(body.get("toolCall") or asked.get("toolCall")).get("toolCallId")),
        )
        outcome = table(body.get("outcome"))
        _keep(found, "outcome", token(outcome.get("outcome")))
        _keep(found, "option", token(outcome.get("optionId")))
    elif method == "session/prompt":
        _keep(found, "stop_reason", token(body.get("stopReason")))
    elif method == "session/fork":
        _keep(found, "forked_from", text(asked.get("sessionId")))
    elif method == "initialize":
        client = table(body.get("clientInfo"))
        _keep(found, "client_name", name(client.get("name")))
        _keep(found, "client_version", name(client.get("version")))
        agent = table(body.get("agentInfo"))
        _keep(found, "agent_name", name(agent.get("name")))
        _keep(found, "agent_version", name(agent.get("version")))
    elif method in ("$/cancel_request", "$/cancelRequest"):
        target = body.get("requestId", body.get("id"))
        _keep(found, "cancelled_id", target if isinstance(target, str) else count(target))
    return found


def _update(found: JSONObject, update: JSONObject) -> None:
    _keep(found, "update", token(update.get("sessionUpdate")))
    _keep(found, "tool_call_id", text(update.get("toolCallId")))
    _keep(found, "tool_title", name(update.get("title")) if "toolCallId" in update else None)
    _keep(found, "tool_kind", token(update.get("kind")))
    _keep(found, "status", token(update.get("status")))
    if "rawInput" in update:
        _keep(found, "args_digest", digest_of(update["rawInput"]))


def _keep(found: JSONObject, fact: str, value: JSONValue) -> None:
    if value is not None:
        found[fact] = value
