"""The checks of `doctor` on the service: reachable on each address, token, last events."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from deploy.setup import blocks, service
from deploy.setup import context as contexts
from deploy.setup.context import Context
from deploy.setup.errors import SetupError
from deploy.setup.patient import Check, Patient


def reachable(patient: Patient) -> Iterator[Check]:
    try:
        wanted = patient.context.wanted(patient.config)
        token = contexts.check_token(wanted.token_file) if wanted.token_file else ""
    except SetupError as error:
        yield Check("wrong", "service", str(error))
        return
    token = token or patient.context.env.get("AEP_TOKEN", "").strip()
    base = blocks.base_url(wanted.url)
    try:
        places = service.addresses(base)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield Check(
            "wrong", "service", f"the host of {base} has no address ({reason}); correct --url or your DNS"
        )
        return
    good: tuple[str, str] | None = None
    for address, family in places:
        answer = service.get(base, address, family, "/healthz", token)
        good = good or ((address, family) if service.healthy(answer) else None)
        yield _judge_health(base, answer)
    if good:
        yield from _judge_stream(patient.context, base, good, token)


def _judge_health(base: str, answer: service.Answer) -> Check:
    where = f"{base} on {answer.address} ({answer.family})"
    if service.healthy(answer):
        return Check("ok", "service", f"{where} answers after {answer.took_ms:.0f} ms")
    if answer.error:
        remedy = "start it (`aep-kimi serve`), or correct --url"
        if "certificate" in answer.error:
            remedy = "have this machine trust its certificate's authority, or correct --url"
        return Check("wrong", "service", f"{where} does not answer ({answer.error}); {remedy}")
    said = answer.body[:200].decode("utf-8", "replace").strip()
    if answer.status == 200 and said.startswith("{"):
        return Check(
            "wrong", "service", f"{where} runs but is not well ({said}); look at its log and its Redis"
        )
    return Check("wrong", "service", f"{where} is something else (status {answer.status}); correct --url")


def _judge_stream(context: Context, base: str, place: tuple[str, str], token: str) -> Iterator[Check]:
    answer = service.get(base, *place, "/stream?from=all&live=0", token, "text/event-stream")
    if answer.status == 401:
        remedy = (
            "the token is not accepted; put the right one in the token file"
            if token
            else "it wants a token; put one in a file and run `aep-setup write kimi-code --token-file FILE`"
        )
        yield Check("wrong", "token", remedy)
        return
    if answer.status == 403:
        yield Check("ok", "token", "accepted (it may not read events, so the last ones are not shown)")
        return
    if answer.status != 200:
        said = answer.error or f"status {answer.status}"
        yield Check(
            "wrong", "token", f"{base}/stream cannot be read ({said}); look at the log of the service"
        )
        return
    yield Check("ok", "token", "accepted" if token else "none is needed")
    seen = service.last_events(answer.body)
    emitters = {event.emitter for event in seen}
    here = context.env.get("AEP_EMITTER", "").strip()
    if not here and token and len(emitters) == 1:
        # The service says who speaks, by the token: a tenant sees no one else.
        (here,) = emitters
    here = here or socket.gethostname()
    mine = [event for event in seen if event.emitter == here]
    for event in mine:
        yield Check("ok", "last event", f"{event.type} at {event.time}")
    if not mine:
        elsewhere = sorted(emitters)
        others = f" (there are events from {', '.join(elsewhere)})" if elsewhere else ""
        yield Check(
            "note", "last event", f"none from {here} yet{others}; send a prompt in kimi and look again"
        )
