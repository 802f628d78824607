"""Events in the shape that AWS sends: REST and HTTP APIs, Function URLs, a schedule, a WebSocket API.

The fields are those of the AWS Lambda and API Gateway developer guides; the values are made up.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

Event = dict[str, Any]
Builder = Callable[["Ask"], Event]

TOKEN = "correct-horse"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as a client makes it; `query` is percent-encoded."""

    method: str
    path: str
    body: str | None = None
    query: str = ""
    content_type: str = "application/json"
    token: str | None = TOKEN
    encoded: bool = False
    ago_ms: int = 0

    @property
    def sent(self) -> str | None:
        """The body as it lies in the event."""
        if self.body is None or not self.encoded:
            return self.body
        return base64.b64encode(self.body.encode()).decode()

    def headers(self, host: str) -> dict[str, str]:
        """What arrives with it, behind AWS's own proxies."""
        found = {
            "accept": "*/*",
            "host": host,
            "user-agent": "kimi-hook",
            "x-amzn-trace-id": f"Root=1-67f0aa10-{next(_numbers):024x}",
            "x-forwarded-for": "203.0.113.7",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
        }
        if self.body is not None:
            found |= {"content-type": self.content_type, "content-length": str(len(self.body.encode()))}
        if self.token is not None:
            found["authorization"] = f"Bearer {self.token}"
        return found

    @property
    def epoch_ms(self) -> int:
        """When AWS took it."""
        return int(time.time() * 1000) - self.ago_ms


def rest(ask: Ask, *, resource: str = "/{proxy+}", base: str = "", stage: str = "prod") -> Event:
    """REST API with a Lambda proxy integration; `base` is what a custom domain maps to the API."""
    headers = {
        _title(name): value
        for name, value in ask.headers("r5x.execute-api.eu-central-1.amazonaws.com").items()
    }
    pairs = parse_qsl(ask.query, keep_blank_values=True)
    many: dict[str, list[str]] = {}
    for name, value in pairs:
        many.setdefault(name, []).append(value)
    return {
        "resource": resource,
        "path": base + ask.path,
        "httpMethod": ask.method,
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": dict(pairs) or None,
        "multiValueQueryStringParameters": many or None,
        "pathParameters": {"proxy": ask.path.lstrip("/")} if resource == "/{proxy+}" else None,
        "stageVariables": None,
        "requestContext": {
            "resourceId": "2gxmpl",
            "resourcePath": resource,
            "httpMethod": ask.method,
            "extendedRequestId": "JJbxmplHYosFVYQ=",
            "requestTime": "10/Mar/2026:00:03:59 +0000",
            "path": f"/{stage}{base}{ask.path}",
            "accountId": "123456789012",
            "protocol": "HTTP/1.1",
            "stage": stage,
            "domainPrefix": "r5x",
            "requestTimeEpoch": ask.epoch_ms,
            "requestId": "77375676-xmpl-4b79-853a-f982474efe18",
            "identity": {"cognitoIdentityId": None, "sourceIp": "203.0.113.7", "userAgent": "kimi-hook"},
            "domainName": "r5x.execute-api.eu-central-1.amazonaws.com",
            "apiId": "r5x",
        },
        "body": ask.sent,
        "isBase64Encoded": ask.encoded,
    }


def rest_mapped(ask: Ask) -> Event:
    """The same behind a custom domain whose base path is `team`."""
    return rest(ask, base="/team")


def rest_declared(ask: Ask) -> Event:
    """The same with a resource for each path, and a base path."""
    return rest(ask, base="/team", resource=ask.path)


def http_v1(ask: Ask) -> Event:
    """HTTP API with payload format 1.0 and a named stage, which is in its path."""
    event = rest(ask, base="/live", stage="live", resource="$default")
    return {"version": "1.0", **event, "pathParameters": None}


def http_v2(ask: Ask, *, stage: str = "$default", route: str = "$default") -> Event:
    """HTTP API with payload format 2.0."""
    prefix = "" if stage == "$default" else f"/{stage}"
    event = {
        "version": "2.0",
        "routeKey": route,
        "rawPath": prefix + ask.path,
        "rawQueryString": ask.query,
        "cookies": ["a=b", "c=d"],
        "headers": ask.headers("h7x.execute-api.eu-central-1.amazonaws.com"),
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "h7x",
            "domainName": "h7x.execute-api.eu-central-1.amazonaws.com",
            "domainPrefix": "h7x",
            "http": {
                "method": ask.method,
                "path": prefix + ask.path,
                "protocol": "HTTP/1.1",
                "sourceIp": "203.0.113.7",
                "userAgent": "kimi-hook",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": route,
            "stage": stage,
            "time": "10/Mar/2026:05:16:23 +0000",
            "timeEpoch": ask.epoch_ms,
        },
        "isBase64Encoded": ask.encoded,
    }
    if ask.query:
        event["queryStringParameters"] = {
            name: ",".join(value for other, value in parse_qsl(ask.query) if other == name)
            for name, _ in parse_qsl(ask.query)
        }
    if ask.sent is not None:
        event["body"] = ask.sent
    return event


def http_v2_stage(ask: Ask) -> Event:
    """The same with a named stage, which is in its path."""
    return http_v2(ask, stage="live")


def http_v2_route(ask: Ask) -> Event:
    """The same with a route that takes all paths below one."""
    event = http_v2(ask, stage="live", route="ANY /team/{proxy+}")
    event["rawPath"] = event["requestContext"]["http"]["path"] = f"/live/team{ask.path}"
    return event | {"pathParameters": {"proxy": ask.path.lstrip("/")}}


def function_url(ask: Ask) -> Event:
    """Function URL: payload format 2.0 with a domain of its own."""
    event = http_v2(ask)
    domain = "u3xmpl7q.lambda-url.eu-central-1.on.aws"
    event["headers"]["host"] = domain
    del event["cookies"]
    event["requestContext"] |= {"apiId": "u3xmpl7q", "domainName": domain, "domainPrefix": "u3xmpl7q"}
    return event


def socket_connect() -> Event:
    """What a WebSocket API asks before it opens a connection."""
    return {
        "headers": {"Host": "w1x.execute-api.eu-central-1.amazonaws.com", "Sec-WebSocket-Version": "13"},
        "multiValueHeaders": {"Host": ["w1x.execute-api.eu-central-1.amazonaws.com"]},
        "requestContext": {
            "routeKey": "$connect",
            "eventType": "CONNECT",
            "connectionId": "LAUncfxmplCFjCg=",
            "stage": "prod",
            "domainName": "w1x.execute-api.eu-central-1.amazonaws.com",
            "apiId": "w1x",
            "identity": {"sourceIp": "203.0.113.7"},
        },
        "isBase64Encoded": False,
    }


def schedule() -> Event:
    """A rule of EventBridge that is due."""
    return {
        "version": "0",
        "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "123456789012",
        "time": "2026-03-10T16:53:06Z",
        "region": "eu-central-1",
        "resources": ["arn:aws:events:eu-central-1:123456789012:rule/sweep"],
        "detail": {},
    }


EVERY: dict[str, Builder] = {
    "rest": rest,
    "rest-mapped": rest_mapped,
    "rest-declared": rest_declared,
    "http-1.0": http_v1,
    "http-2.0": http_v2,
    "http-2.0-stage": http_v2_stage,
    "http-2.0-route": http_v2_route,
    "function-url": function_url,
}


def replay_of(session: str) -> Ask:
    """What is held of a session, with a query that needs its encoding."""
    filters = f'{{"session":"{session}"}}'
    return Ask("GET", "/stream", query=urlencode({"live": "0", "from": "all", "filter": filters}))


def answered(answer: dict[str, Any]) -> dict[str, str]:
    """The headers of an answer, in either format."""
    many = {name: values[0] for name, values in (answer.get("multiValueHeaders") or {}).items()}
    return (answer.get("headers") or {}) | many


def body_of(answer: dict[str, Any]) -> str:
    """The body of an answer as the client gets it."""
    body: str = answer["body"]
    return base64.b64decode(body).decode() if answer["isBase64Encoded"] else body


def _title(name: str) -> str:
    return "-".join(part.capitalize() for part in name.split("-"))
