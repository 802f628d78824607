"""The AWS Lambda entry: `handlers.aws.handler`, for API Gateway REST and HTTP APIs and Function URLs.

Lambda freezes the process between invocations and buffers answers, so nothing runs in the background, live
streams are refused, and the connection to Redis is made by the first invocation and kept for the next ones.
What the sweeper does elsewhere is done by an EventBridge schedule that invokes the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mangum import Mangum

from handlers.app import LazyApp

Invocation = Callable[[dict[str, Any], Any], dict[str, Any]]


def entry(app: LazyApp) -> Invocation:
    """A Lambda function around `app`."""
    http = Mangum(app, lifespan="off")

    def invoke(event: dict[str, Any], context: Any) -> dict[str, Any]:
        """Answer a request, or the schedule's call to tick what is due.

        A request cannot pass for a schedule: what a client sends is always inside an event that AWS makes.
        """
        if event.get("source") == "aws.events":
            # Mangum has seen to it that this thread has a loop; the connection to Redis belongs to it.
            return {"ticked": asyncio.get_event_loop().run_until_complete(app.service.sweep())}
        return http(event, context)

    return invoke


handler = entry(LazyApp(serverless=True))
