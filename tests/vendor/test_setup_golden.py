"""The vendor's own parser accepts every shape of config at every stage of write → refresh → remove."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.setup import edit, schema, vendor
from deploy.setup.blocks import EVENTS_20, Registration
from deploy.setup.document import Document
from deploy.setup.errors import SetupError
from tests.setup.shapes import FOUND, HOOK, KEPT, MARKED, NAME, OTHER, REFUSED

from .kimi import Kimi
from .web import Web

PYTHON, SHIM = '/opt/it\'s "aep" ü/bin/python', '/opt/it\'s "aep" ü/kimi_hook.py'


def registrations(kimi: Kimi) -> tuple[Registration, Registration]:
    """A plain one, and one with control, a token and an odd path: a stale fence for each other."""
    events = vendor.events(kimi.version, {})
    return (
        Registration(
            "/usr/bin/python3", "/srv/aep/kimi_hook.py", "http://127.0.0.1:8398/hook", events=events
        ),
        Registration(
            PYTHON, SHIM, "https://aep.example.org/hook", "/etc/a token", control=True, events=events
        ),
    )


class Judge:
    """`kimi doctor config FILE` over many files: what it says about those it refuses."""

    def __init__(self, kimi: Kimi, folder: Path) -> None:
        self._kimi = kimi
        self._folder = folder
        self._files: dict[str, Path] = {}

    def add(self, name: str, data: bytes) -> None:
        path = self._folder / f"{len(self._files)}.toml"
        path.write_bytes(data)
        self._files[name] = path

    def _ask(self, path: Path) -> str:
        done = subprocess.run(
            [*self._kimi.argv, "doctor", "config", str(path)],
            env=self._kimi.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def refused(self) -> dict[str, str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = dict(zip(self._files, pool.map(self._ask, self._files.values()), strict=True))
        return {name: text for name, text in said.items() if text}


def written(data: bytes | None, wanted: Registration, *, refence: bool = False) -> bytes:
    new = edit.write(data, NAME, wanted, refence=refence).data
    assert new is not None
    return new


def test_every_shape_is_accepted_at_every_stage(kimi: Kimi, tmp_path: Path) -> None:
    """The file as it was is the file after `remove`: one version is asked about those."""
    plain, odd = registrations(kimi)
    judge = Judge(kimi, tmp_path)
    for name, data in KEPT.items():
        first = written(data, plain)
        second = written(first, odd)
        assert written(second, odd) == second
        assert edit.remove(second, NAME).data == data
        judge.add(f"{name}: written", second)
        if kimi.v2:
            judge.add(f"{name}: removed", data)
    assert judge.refused() == {}


def test_what_is_found_is_accepted_at_every_stage(kimi: Kimi, tmp_path: Path) -> None:
    plain, _ = registrations(kimi)
    judge = Judge(kimi, tmp_path)
    for name, shape in FOUND.items():
        judge.add(f"{name}: written", written(shape.data, plain, refence=shape.refence))
        assert edit.remove(shape.data, NAME).data == shape.without
    assert judge.refused() == {}


def test_our_schema_says_what_the_vendors_says(kimi: Kimi, tmp_path: Path) -> None:
    shapes = {
        name: shape.data
        for name, shape in REFUSED.items()
        if HOOK in shape.data or b"[[hooks]]" in shape.data
    }
    shapes |= {name: KEPT[name] for name in ("one hook", "timeout 5.0", "timeout 600", "headers in quotes")}
    shapes["a newer event"] = HOOK.replace(b"Stop", b"TurnStarted")
    shapes["a matcher that is no regex"] = HOOK + b'matcher = "*("\n'
    judge = Judge(kimi, tmp_path)
    ours = set()
    for name, data in shapes.items():
        judge.add(name, data)
        try:
            problems = schema.check(
                Document(data.decode()), vendor.events("2.1.0" if kimi.v2 else kimi.version, {})
            )
        except SetupError:
            ours.add(name)
        else:
            ours |= {name} if problems else set()
    assert set(judge.refused()) - {"a newer event"} == ours - {"a newer event"}
    assert {"timeout 601", "an unknown event", "a setting below a hook", "hooks = [] above hooks"} <= ours


def test_a_byte_order_mark_is_refused_with_us_and_without(kimi_newest: Kimi, tmp_path: Path) -> None:
    plain, _ = registrations(kimi_newest)
    judge = Judge(kimi_newest, tmp_path)
    marked = {name: data for name, data in MARKED.items() if name != "BOM and nothing"}
    for name, data in marked.items():
        judge.add(name, data)
        judge.add(f"{name}: written", written(data, plain))
    assert len(judge.refused()) == 2 * len(marked)


def test_an_integer_above_2_53_is_refused(kimi_newest: Kimi, tmp_path: Path) -> None:
    judge = Judge(kimi_newest, tmp_path)
    judge.add("largest", b"a = 9007199254740991\n")
    judge.add("larger", b"a = 9007199254740992\n")
    assert set(judge.refused()) == {"larger"}
    assert schema.large_integers(Document("a = 9007199254740991\n")) == []
    assert schema.large_integers(Document("a = 9007199254740992\n"))


def test_newer_events_would_disable_the_hooks_of_an_older_vendor(kimi_oldest: Kimi, tmp_path: Path) -> None:
    wanted = Registration("/p", "/kimi_hook.py", "http://h:1/hook", events=EVENTS_20)
    judge = Judge(kimi_oldest, tmp_path)
    judge.add("20 events", written(b"", wanted))
    assert "hooks[16].event" in judge.refused()["20 events"]


def saved(kimi: Kimi, data: bytes) -> bytes:
    """The file after a change of settings in the web page, which saves it whole and without comments."""
    kimi.config.write_bytes(data)
    with Web(kimi) as web:
        web.call("POST", "/config", {"default_permission_mode": "auto"})
    return kimi.config.read_bytes()


@pytest.mark.parametrize("after", [b"", HOOK], ids=["ours last", "a hook after ours"])
def test_the_vendor_strips_our_comments_and_we_cope(kimi: Kimi, after: bytes) -> None:
    plain, odd = registrations(kimi)
    before = kimi.config.read_bytes() + b"\n" + OTHER
    ours = saved(kimi, written(before, plain) + after)
    assert b"aep-kimi" not in ours
    assert edit.load(ours, NAME).shape == "bare"

    assert edit.write(ours, NAME, plain).data == ours
    with pytest.raises(SetupError, match="--refence"):
        edit.write(ours, NAME, odd)
    refenced = written(ours, odd, refence=True)
    assert refenced.count(b"[[hooks]]") == before.count(b"[[hooks]]") + after.count(b"[[hooks]]") + len(
        odd.events
    )

    removed = edit.remove(ours, NAME).data
    assert removed == saved(kimi, before + after)
    assert edit.remove(refenced, NAME).data == removed


def test_a_change_that_keeps_comments_keeps_the_fence(kimi_newest: Kimi) -> None:
    """`kimi provider remove` of 2.1.0 leaves the rest of the file as it is."""
    plain, _ = registrations(kimi_newest)
    more = b'\n[providers.spare]\ntype = "openai"\nbase_url = "http://127.0.0.1:9"\napi_key = "sk-spare"\n'
    before = kimi_newest.config.read_bytes()
    kimi_newest.config.write_bytes(written(before + more, plain))
    assert kimi_newest.run(["provider", "remove", "spare"]).code == 0
    ours = kimi_newest.config.read_bytes()
    if edit.load(ours, NAME).shape == "fenced":
        assert edit.write(ours, NAME, plain).data == ours
    assert edit.write(ours, NAME, plain, refence=True).data
    kimi_newest.config.write_bytes(before + more)
    assert kimi_newest.run(["provider", "remove", "spare"]).code == 0
    assert edit.remove(ours, NAME).data == kimi_newest.config.read_bytes()
