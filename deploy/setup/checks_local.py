"""The checks of `doctor` on this machine: Kimi Code, its home, the file, the fence, the command."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from deploy.setup import blocks, files, running, schema, status, trial, vendor
from deploy.setup import context as contexts
from deploy.setup.context import Context
from deploy.setup.errors import SetupError
from deploy.setup.patient import Check, Patient

_VENDOR_DOCTOR_S = 60


def vendors(patient: Patient) -> Iterator[Check]:
    context = patient.context
    found = context.vendor
    if not found.path:
        yield Check("wrong", "kimi", "no `kimi` is on PATH; install @moonshot-ai/kimi-code, or give --kimi")
    elif found.origin == "foreign":
        yield Check(
            "wrong",
            "kimi",
            f"{found.path} belongs to `{found.package}`, which is not Moonshot AI's; "
            f"install {vendor.PACKAGE} and put it first on PATH",
        )
    elif found.origin == "unknown":
        yield Check(
            "wrong",
            "kimi",
            f"{found.path} does not show that it is {vendor.PACKAGE}; install that, or give --kimi its path",
        )
    elif not found.version:
        yield Check("wrong", "kimi", f"{found.path} --version fails; run it and correct what it says")
    else:
        yield Check("ok", "kimi", f"{found.path}, {found.package} {found.version}")
    if context.version:
        yield Check(
            "ok", "engine", f"{context.engine}, accepts {len(context.events)} hook events{_flags(context)}"
        )
    for path in vendor.others(found, context.env):
        yield Check("note", "kimi", f"another one is behind it on PATH: {path}")


def _flags(context: Context) -> str:
    said = [
        f"{name}={context.env[name]}"
        for name in (vendor.LEGACY_FLAG, vendor.EXPERIMENTAL_FLAG)
        if vendor.truthy(context.env.get(name))
    ]
    return f" ({', '.join(said)})" if said else ""


def homes(patient: Patient) -> Iterator[Check]:
    context = patient.context
    if context.home.is_dir():
        yield Check("ok", "home", str(context.home))
    else:
        yield Check("wrong", "home", f"{context.home} does not exist; start kimi once, or give --home")
    for path in vendor.other_homes(context.home, context.env):
        old = " (of the older kimi-cli, which these hooks do not reach)" if path.name == ".kimi" else ""
        yield Check("note", "home", f"another one has a config: {path}{old}")


def file(patient: Patient) -> Iterator[Check]:
    path = patient.context.config
    if patient.error:
        yield Check("wrong", "config", patient.error)
        return
    if patient.config is None:
        yield Check("wrong", "config", f"{path} does not exist; run `aep-setup write kimi-code`")
        return
    if patient.config.mark:
        yield Check(
            "wrong",
            "config",
            f"{path} begins with a byte order mark, which Kimi Code cannot read; save it without one",
        )
    for problem in schema.large_integers(patient.config.document):
        yield Check("wrong", "config", f"{path}, {problem}")
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if os.name == "posix" and mode & 0o077 and b"api_key" in (patient.data or b""):
        yield Check("note", "config", f"{path} holds API keys and others may read it; chmod 600 it")
    yield Check("ok", "config", f"{path} is TOML")


def hooks(patient: Patient) -> Iterator[Check]:
    if patient.config is None:
        return
    context, own = patient.context, {entry.index for entry in patient.config.own}
    problems = schema.check(patient.config.document, context.accepted)
    for problem in problems:
        ours = problem.entry in own
        remedy = " (an entry of aep-setup: run `aep-setup write kimi-code`)" if ours else ""
        yield Check(
            "wrong", "hooks", f"{context.config}, {problem}{remedy}; until then no hook of yours runs"
        )
    if not problems:
        count = len(patient.config.document.entries)
        yield Check("ok", "hooks", f"{count} entr{'y' if count == 1 else 'ies'}, as Kimi Code wants them")


def vendors_doctor(patient: Patient) -> Iterator[Check]:
    context = patient.context
    if context.vendor.origin != "vendor" or patient.data is None:
        return
    env = {**context.env, "KIMI_CODE_HOME": str(context.home)}
    try:
        done = subprocess.run(
            [context.vendor.path, "doctor", "config", str(context.config)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VENDOR_DOCTOR_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        yield Check("note", "kimi doctor", "could not be run")
        return
    if done.returncode == 0:
        yield Check("ok", "kimi doctor", "Kimi Code itself accepts the file")
    else:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        said = next(
            (line for line in lines if "hooks" in line or "nvalid TOML" in line), lines[-1] if lines else ""
        )
        yield Check(
            "wrong", "kimi doctor", f"Kimi Code refuses the file ({said}); run `kimi doctor` and correct it"
        )


def fence(patient: Patient) -> Iterator[Check]:
    if patient.config is None:
        return
    found = status.inspect(patient.context)
    for reason in found.stale:
        yield Check("wrong", "fence", f"{reason}; run `aep-setup write kimi-code`")
    if found.state == "absent":
        yield Check("wrong", "fence", "no hooks are registered; run `aep-setup write kimi-code`")
    elif found.state == "broken":
        yield Check("wrong", "fence", "it is not whole; run `aep-setup write kimi-code --refence`")
    elif found.state == "bare":
        yield Check(
            "note", "fence", "the comments are gone; `aep-setup write kimi-code --refence` puts them back"
        )
    elif found.state == "current":
        yield Check("ok", "fence", f"{len(found.events)} events for {found.url}")
    for observer in found.observers:
        yield Check("wrong", "fence", f"{observer} sees every event too, so remove one of the two")


def command(patient: Patient) -> Iterator[Check]:
    """Each kind of command once: inline, and detached."""
    if patient.config is None:
        return
    tried: set[tuple[object, ...]] = set()
    for entry in patient.config.own:
        call = blocks.parse_command(entry.command)
        if call is None or (kind := (call.python, call.shim, call.token_file, call.detach)) in tried:
            continue
        tried.add(kind)
        name = "command, detached" if call.detach else "command"
        missing = _missing(call)
        if missing:
            yield Check("wrong", name, missing)
            continue
        limit = entry.values.get("timeout")
        done = trial.run(entry.command, call, float(limit) if isinstance(limit, int) else 30.0)
        yield _judge(name, done)


def _missing(call: blocks.Call) -> str:
    again = "run `aep-setup write kimi-code` with the Python of aep-kimi"
    if not os.access(call.python, os.X_OK):
        return f"the interpreter {call.python} cannot be run; {again}"
    if not os.access(call.shim, os.R_OK):
        return f"the shim {call.shim} cannot be read; {again}"
    if call.token_file:
        try:
            contexts.check_token(call.token_file)
        except SetupError as error:
            return str(error)
    return ""


def _judge(name: str, done: trial.Trial) -> Check:
    if done.code is None:
        return Check("wrong", name, f"it runs longer than its {done.took_s:.0f} s; update aep-kimi")
    if done.code or done.stdout:
        return Check(
            "wrong", name, f"it exits with {done.code} and prints {done.stdout[:80]!r}; update aep-kimi"
        )
    if not done.delivered:
        reason = done.stderr.splitlines()[-1] if done.stderr else "it says nothing"
        return Check("wrong", name, f"it delivers no event ({reason}); run `aep-setup write kimi-code`")
    return Check("ok", name, f"delivers an event and is back after {done.took_s * 1000:.0f} ms")


def programs(patient: Patient) -> Iterator[Check]:
    if patient.config is None or not patient.config.own:
        return
    context = patient.context
    changed = files.last_backup(context.config) or _modified(context.config)
    found = running.programs(context.home)
    old = [program for program in found if program.since < changed]
    for program in old:
        yield Check(
            "wrong",
            "session",
            f"{program.what} (process {program.pid}) runs since {program.since:%Y-%m-%d %H:%M}Z, before the "
            "hooks were last changed; restart it, or type /reload in it",
        )
    if not old:
        said = f"{len(found)} running, all started with the hooks" if found else "none is running"
        yield Check("ok", "session", said)


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(os.stat(path).st_mtime, UTC)
