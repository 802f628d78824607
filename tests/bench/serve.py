"""An ASGI application under uvicorn as the service runs: `python -m tests.bench.serve APPLICATION PORT`."""

from __future__ import annotations

import importlib.util
import sys

import uvicorn

from deploy.cli.framed import FramedProtocol


def main() -> None:
    """Run it until a signal comes."""
    target, port = sys.argv[1:]
    config = uvicorn.Config(
        target,
        port=int(port),
        loop="uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        http="httptools" if importlib.util.find_spec("httptools") else "h11",
        ws=FramedProtocol,
        ws_per_message_deflate=False,
        access_log=False,
        log_level="warning",
        backlog=2048,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
