"""`aep-kimi respond REQUEST ANSWER`: answer a request that waits."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from deploy.cli.client import Event, Service, ServiceError
from deploy.cli.pending import Request, known, waiting
from deploy.cli.wire import ACCEPTED, FAILED, Wire, command, connect, deliver, pick, say

RESPOND = "control.attention.respond"
_OUTCOME_SECONDS = 5.0


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "respond",
        help="answer a waiting request",
        description="Answer a request that waits. An answer that is no option's word denies, and is the "
        "reason that the agent is given. Says whether the answer was applied.",
        epilog="Exit codes: 0 accepted, 3 refused, 4 no answer in time. Examples: aep-kimi respond - allow; "
        "aep-kimi respond 8WPTZ0Q4 'no, use the staging registry'",
    )
    parser.add_argument(
        "request", metavar="REQUEST", help="the request's id or its end, '-' for the only one that waits"
    )
    parser.add_argument("answer", metavar="ANSWER", nargs="+", help="allow, deny, or a reason to deny")
    parser.add_argument("--reason", help="with deny: what the agent is told")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for what becomes of the answer")
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    try:
        service = Service(args.url)
        request = find(known(service), args.request)
        with connect(service) as wire:
            made = command(RESPOND, request.session, {"answer": answer(args)}, subject=request.id)
            result = deliver(wire, made)
            say("respond", result)
            if result.code == ACCEPTED and not args.no_wait:
                print(outcome(wire, request.id, result.command_id))
            return result.code
    except (ServiceError, ConnectionError) as error:
        print(f"aep-kimi respond: {error}", file=sys.stderr)
        return FAILED


def find(requests: list[Request], wanted: str) -> Request:
    """The request that is meant: among those that wait first, then among those that are closed."""
    by_id = {request.id: request for request in requests}
    open_ = [request.id for request in waiting(requests, time.time()) if request.answerable]
    try:
        return by_id[pick(open_, wanted, "waiting request")]
    except ServiceError:
        if wanted == "-":
            raise
        return by_id[pick(list(by_id), wanted, "request")]


def answer(args: argparse.Namespace) -> Event:
    """The `answer` of the command. Options travel as options; the service maps text, not we."""
    text = " ".join(args.answer).strip()
    if text in ("allow", "deny"):
        return {"option": text, "text": args.reason} if args.reason else {"option": text}
    return {"text": f"{text} {args.reason}" if args.reason else text}


def outcome(wire: Wire, request: str, command_id: str) -> str:
    """What became of an accepted answer, in a sentence."""

    def ends(frame: Event) -> bool:
        kind = frame.get("type")
        return kind in ("attention.resolved", "attention.timeout") and frame.get("subject") == request

    end = wire.until(ends, _OUTCOME_SECONDS)
    if end is None:
        return "not applied yet: watch 'aep-kimi tail'"
    for frame in wire.inbox:
        if frame.get("type") == "attention.answered" and frame.get("cause") == command_id:
            option = (frame.get("data") or {}).get("answer", {}).get("option")
            if option == "deny":
                return "applied: the call was denied"
            return "applied: the agent goes on by its own rules" if option == "allow" else "applied"
    how = (end.get("data") or {}).get("resolution") or "timeout"
    return f"NOT applied: the request ended before ({how})"
