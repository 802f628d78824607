"""`aep-kimi doctor`: is everything between the agent and its watchers well, and if not, what to do."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from deploy.cli.client import Service, ServiceError

SKEW_MS = 500
"""Positions rise through a failover as long as clocks differ by less (docs/state.md)."""

_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. Of something wrong, `text` ends with what to do about it."""

    verdict: Literal["ok", "wrong", "note"]
    about: str
    text: str


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="look for what is wrong",
        description="Check, one line each, with a remedy where something is wrong: the service, the token, "
        "Redis, the clocks of all replicas, the relay link, and the hooks in Kimi Code's settings. Changes "
        "nothing. 'aep-setup doctor kimi-code' looks at the hooks much more closely.",
        epilog="Exit codes: 0 nothing is wrong, 1 something is.",
    )
    parser.add_argument("--url", help="where the service is (default: AEP_URL)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--no-hooks", action="store_true", help="no agent runs here: leave the hooks out")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    wrong = 0
    for finding in findings(args.url, os.environ, hooks=not args.no_hooks):
        wrong += finding.verdict == "wrong"
        if args.json:
            said = {"verdict": finding.verdict, "about": finding.about, "text": finding.text}
            print(json.dumps(said), flush=True)
        else:
            mark = {"ok": "ok   ", "wrong": "WRONG", "note": "note "}[finding.verdict]
            print(f"{mark} {finding.about}: {finding.text}", flush=True)
    if not args.json:
        print("nothing is wrong" if not wrong else f"{wrong} thing{'s' if wrong > 1 else ''} to correct")
    return 1 if wrong else 0


def findings(url: str | None, env: Mapping[str, str], *, hooks: bool = True) -> Iterator[Finding]:
    """All checks, in order."""
    yield from _environment(env)
    try:
        service = Service(url)
        yield from _service(service, env)
    except ServiceError as error:
        yield Finding("wrong", "service", f"{error}; start it ('aep-kimi serve'), or correct AEP_URL")
    if hooks:
        yield from _hooks(env)


def _environment(env: Mapping[str, str]) -> Iterator[Finding]:
    """What a service that is started here would stumble over, or leave undone."""
    from handlers.errors import SettingsError
    from handlers.settings import Settings

    try:
        idle = Settings.from_env(env).idle
    except SettingsError as error:
        yield Finding("wrong", "settings", f"{error}; correct it")
        return
    if idle is not None:
        yield Finding("wrong", "settings", f"{idle}; set that, too, or neither")


def _service(service: Service, env: Mapping[str, str]) -> Iterator[Finding]:
    status, body = service.get("/healthz")
    health = _object(body)
    if status != 200 or not isinstance(health.get("ok"), bool):
        yield Finding(
            "wrong", "service", f"{service.url} is something else (status {status}); correct AEP_URL"
        )
        return
    yield Finding("ok", "service", f"{service.url} answers")
    yield from _token(service)
    details = "counters" in health
    problem = health.get("problem")
    if health["ok"]:
        yield Finding("ok", "Redis", "events can be stored")
    else:
        why = problem if isinstance(problem, str) else "it does not say why without a right token"
        yield Finding("wrong", "Redis", f"{why}; look at Redis and at the log of the service")
    if details:
        yield from clocks(health.get("clocks"))
        yield from counts(health)
    else:
        yield Finding("note", "details", "clocks and counts are told only to those who may watch")
    relay = health.get("relay") is True
    if relay:
        yield Finding("ok", "relay", "the link is bound")
    elif env.get("AEP_RELAY_URL", "").strip():
        yield Finding(
            "wrong",
            "relay",
            "AEP_RELAY_URL is set and no link is bound; look at the log of the service, and at "
            "AEP_RELAY_TOKEN",
        )
    else:
        yield Finding("note", "relay", "no link is bound, and none is wanted here")


def _token(service: Service) -> Iterator[Finding]:
    status, body = service.get("/stream?live=0")
    host = urlsplit(service.url)
    if status == 200:
        if service.token and host.scheme == "http" and host.hostname not in _LOCAL:
            yield Finding("note", "token", "accepted, but it goes over the network readable: use https")
        else:
            yield Finding("ok", "token", "accepted" if service.token else "none is needed")
    elif status == 401:
        remedy = "get a new one ('aep-kimi token new')" if service.token else "set AEP_TOKEN"
        yield Finding(
            "wrong", "token", f"the service does not accept {'it' if service.token else 'none'}; {remedy}"
        )
    elif status == 403:
        detail = _object(body).get("detail")
        if service.token:
            yield Finding("note", "token", f"accepted; it cannot watch ({detail})")
        else:
            yield Finding("wrong", "token", f"{detail}; set AEP_TOKEN here and on the service")
    else:
        yield Finding("wrong", "token", f"/stream answers {status}; look at the log of the service")


def clocks(found: object) -> Iterator[Finding]:
    """Judge the offsets of all replicas to Redis's clock, milliseconds."""
    offsets = [value for value in found.values() if isinstance(value, int)] if isinstance(found, dict) else []
    if not offsets:
        yield Finding("note", "clocks", "no replica has told its clock yet; look again in ten seconds")
        return
    spread = max(*offsets, 0) - min(*offsets, 0)
    text = (
        f"{len(offsets)} replica{'s' if len(offsets) > 1 else ''}, {spread} ms apart at most, Redis included"
    )
    if spread > SKEW_MS:
        yield Finding(
            "wrong", "clocks", f"{text}: more than {SKEW_MS} ms; synchronise them (chrony, ntpd, timesyncd)"
        )
    else:
        yield Finding("ok", "clocks", text)


def counts(health: dict[str, Any]) -> Iterator[Finding]:
    """What the counters tell of trouble since the process started."""
    counters = health.get("counters")
    known: dict[str, Any] = counters if isinstance(counters, dict) else {}
    lost = int(known.get("hooks.stored.no", 0)) - int(known.get("hooks.limited", 0))
    told = {
        "events of hooks were not stored (Redis was away or slow)": lost,
        "hooks were let go unobserved: their token is over its rate": int(known.get("hooks.limited", 0)),
        "hooks met a defect of ours; the log has it, please report it": int(known.get("hooks.failed", 0)),
        "commits were missed by the live feed; consumers resumed": int(health.get("feed_missed") or 0),
    }
    for text, number in told.items():
        if number > 0:
            yield Finding("note", "since the start", f"{number} {text}")


def _hooks(env: Mapping[str, str]) -> Iterator[Finding]:
    from deploy.setup.cli import main as setup

    said, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
        setup(["status", "kimi-code", "--json"], env)
    status = _object(said.getvalue().encode())
    state, config = status.get("state"), status.get("config", "")
    if state == "current":
        yield Finding("ok", "hooks", f"registered in {config}, for {status.get('url')}")
    elif state == "absent":
        yield Finding(
            "wrong", "hooks", "not registered; run 'aep-setup write kimi-code' (no agent here: --no-hooks)"
        )
    elif state in ("stale", "bare"):
        why = "; ".join(status.get("stale") or ["the fence around them is gone"])
        yield Finding("wrong", "hooks", f"{why}; run 'aep-setup write kimi-code'")
    else:
        why = status.get("error") or complaint.getvalue().strip() or f"state {state}"
        yield Finding("wrong", "hooks", f"{why}; 'aep-setup doctor kimi-code' tells more")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
