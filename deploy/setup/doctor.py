"""`doctor`: looks at everything between Kimi Code and the service, one line a check, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deploy.setup import checks_local, checks_service, files
from deploy.setup import context as contexts
from deploy.setup.context import Context
from deploy.setup.edit import Config
from deploy.setup.errors import SetupError
from deploy.setup.patient import Check, Patient

_CHECKS: tuple[Callable[[Patient], Iterator[Check]], ...] = (
    checks_local.vendors,
    checks_local.homes,
    checks_local.file,
    checks_local.hooks,
    checks_local.vendors_doctor,
    checks_local.fence,
    checks_local.command,
    checks_service.reachable,
    checks_local.programs,
)


def doctor(context: Context) -> int:
    """Print the checks; 1 if any is wrong."""
    wrong = 0
    for check in checks(context):
        mark = {"ok": "ok   ", "wrong": "WRONG", "note": "note "}[check.verdict]
        print(f"{mark} {check.about}: {check.text}", flush=True)
        wrong += check.verdict == "wrong"
    print("nothing is wrong" if not wrong else f"{wrong} thing{'s' if wrong > 1 else ''} to correct")
    return 1 if wrong else 0


def checks(context: Context) -> Iterator[Check]:
    """All checks, in order; each reads only."""
    patient = _read(context)
    for check in _CHECKS:
        yield from check(patient)


def _read(context: Context) -> Patient:
    data: bytes | None = None
    config: Config | None = None
    error = ""
    try:
        data = files.read(context.config).data
        config = contexts.load(context, data)
    except SetupError as found:
        error = str(found)
    return Patient(context, data, config, error)
