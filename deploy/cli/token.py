"""`aep-kimi token`: make, list and revoke the tokens of a shared service."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handlers.errors import SettingsError
    from handlers.token_file import Grant


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "token",
        help="make, list and revoke tokens",
        description="Change the file that AEP_TOKENS_FILE names. It holds digests only; a running service "
        "reads it again within a second or two, so that nothing has to be restarted.",
    )
    parser.add_argument("--file", help="the token file (default: AEP_TOKENS_FILE)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="make a token and print it, once",
        description="Make a token and print it on stdout: it cannot be shown again. Rights are emit, watch, "
        "answer and steer (which includes answer), for the sessions of that emitter; with all, watching and "
        "commanding reach the sessions of everybody.",
    )
    new.add_argument(
        "emitter", metavar="EMITTER", nargs="?", help="whose machine speaks, in the source of its events"
    )
    new.add_argument("--emitter", dest="named", metavar="EMITTER", help="the same, as an option")
    new.add_argument("--rights", default="emit,watch", help="comma-separated (default: emit,watch)")
    new.add_argument("--rate", type=int, help="events per second it may hand in (default: AEP_RATE)")
    new.add_argument("--body", type=int, help="largest request body in bytes (default: AEP_MAX_BODY)")
    new.add_argument("--label", default="", help="for people: whose it is, where it is used")
    listing = actions.add_parser("list", help="show what is granted, without the tokens")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    revoke = actions.add_parser("revoke", help="take a token back")
    revoke.add_argument("token", metavar="ID", help="its id from the list, or its label")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    from handlers import token_file
    from handlers.errors import SettingsError

    where = args.file or os.environ.get("AEP_TOKENS_FILE")
    if not where:
        return _fail("no token file: set AEP_TOKENS_FILE or give --file", 2)
    path = Path(where)
    try:
        if args.action == "new":
            emitter = args.named or args.emitter
            if not emitter or (args.named and args.emitter):
                return _fail("name one emitter", 2)
            token = token_file.add(
                path, emitter, args.rights, rate=args.rate, body=args.body, label=args.label
            )
            print(token)
            print(f"granted to {emitter}: {args.rights}; this token is shown only now", file=sys.stderr)
        elif args.action == "revoke":
            gone = token_file.remove(path, args.token)
            print(f"revoked {gone.short}, which spoke for {gone.principal.emitter}")
        else:
            _list(path, token_file.grants(path), args.json)
    except SettingsError as error:
        return _fail(_problem(error, path), 2)
    except OSError as error:
        return _fail(f"{path}: {error.strerror or error}", 1)
    return 0


def _problem(error: SettingsError, path: Path) -> str:
    if error.variable == "AEP_TOKENS_FILE":
        return f"{path}: {error.problem}"
    return error.problem if error.variable == "token" else str(error)


def _list(path: Path, found: list[Grant], as_json: bool) -> None:
    if as_json:
        import json

        for grant in found:
            who = grant.principal
            said = {"id": grant.short, "emitter": who.emitter, "rights": sorted(who.rights)}
            print(json.dumps(said | {"rate": who.rate, "body": who.body, "label": who.label}))
        return
    for grant in found:
        who = grant.principal
        limits = [f"rate={who.rate}"] if who.rate is not None else []
        limits += [f"body={who.body}"] if who.body is not None else []
        print(
            "  ".join([grant.short, who.emitter, ",".join(sorted(who.rights)), *limits, who.label]).rstrip()
        )
    if not found:
        print("no tokens")
    elif stat.S_IMODE(path.stat().st_mode) & 0o022:
        print(f"aep-kimi token: others may write {path}: chmod 600 it", file=sys.stderr)


def _fail(text: str, code: int) -> int:
    print(f"aep-kimi token: {text}", file=sys.stderr)
    return code
