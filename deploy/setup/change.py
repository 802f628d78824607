"""`write` and `remove`: read under the lock, edit, back up, replace, say what was done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from deploy.setup import context as contexts
from deploy.setup import edit, files
from deploy.setup.blocks import Registration
from deploy.setup.context import Context
from deploy.setup.edit import Edit
from deploy.setup.errors import SetupError
from deploy.setup.files import ChangedMeanwhile, Snapshot

_ATTEMPTS = 5

Make = Callable[[Snapshot], Edit]


def write(context: Context) -> int:
    """Register the hooks; 0 when they are registered, raises SetupError when they are not."""
    options = context.options
    kept: list[Registration] = []

    def make(snapshot: Snapshot) -> Edit:
        data, name = snapshot.data, str(context.config)
        fixed = edit.fix(data, name) if options.fix and data is not None else data
        wanted = context.wanted(contexts.load(context, fixed))
        if wanted.token_file:
            contexts.check_token(wanted.token_file)
        kept[:] = [wanted]
        return edit.write(
            fixed,
            name,
            wanted,
            accepted=context.accepted,
            refence=options.refence,
            beside=options.beside,
        )

    print(_about(context))
    done = _change(context.config, make, dry=options.dry_run, show=options.fix)
    wanted = kept[0]
    if done is not None:
        control = ", tool calls can be held" if wanted.control else ""
        print(f"{len(wanted.events)} hooks for {wanted.url}{control}")
        print(
            "Restart open sessions of Kimi Code (or type /reload in them), they read hooks when they start."
        )
    return 0


def remove(context: Context) -> int:
    """Take the hooks out; 0 when none is left, raises SetupError when that cannot be done."""

    def make(snapshot: Snapshot) -> Edit:
        if snapshot.data is None:
            return Edit(None, (f"{context.config} does not exist, nothing to do",))
        return edit.remove(snapshot.data, str(context.config))

    _change(context.config, make, dry=context.options.dry_run, show=False)
    return 0


def _about(context: Context) -> str:
    version = context.version
    if not version:
        reason = context.vendor.why or f"{context.vendor.path} is not the vendor's"
        return (
            f"Kimi Code's version is not known ({reason}): registering only what every version accepts; "
            "--vendor-version tells it"
        )
    where = f" ({context.vendor.path})" if context.vendor.path and not context.options.vendor_version else ""
    return f"Kimi Code {version}{where}, engine {context.engine}: it accepts {len(context.events)} events"


def _change(path: Path, make: Make, *, dry: bool, show: bool) -> Path | None:
    """Apply an edit; returns the path if the file was changed."""
    if dry:
        snapshot = files.read(path)
        edited = make(snapshot)
        _say(edited.notes)
        if edited.data != snapshot.data:
            print(edit.difference(snapshot.data, edited.data, str(path)))
        return None
    if files.read(path).data is None and make(files.read(path)).data is None:
        _say(make(files.read(path)).notes)
        return None
    with files.lock(path):
        for _ in range(_ATTEMPTS):
            snapshot = files.read(path)
            edited = make(snapshot)
            if edited.data == snapshot.data:
                _say(edited.notes)
                return None
            files.check_writable(snapshot)
            if show:
                print(edit.difference(snapshot.data, edited.data, str(path)))
            try:
                backup = files.replace(snapshot, edited.data)
            except ChangedMeanwhile:
                continue
            _say(edited.notes)
            print(f"{'wrote' if edited.data is not None else 'removed'} {path}")
            if backup:
                print(f"backup {backup}")
            return path
    raise SetupError(f"another program keeps writing {path}; close Kimi Code's settings, then run again")


def _say(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(note, file=sys.stdout)
