"""The AWS Lambda entry: `handlers.aws.handler`, for API Gateway REST and HTTP APIs and Function URLs.

Lambda freezes the process between invocations and buffers answers, so nothing runs in the background, live
streams are refused, and the connection to Redis is made by the first invocation and kept for the next ones.
"""

from __future__ import annotations

from mangum import Mangum

from handlers.app import LazyApp

handler = Mangum(LazyApp(serverless=True), lifespan="off")
