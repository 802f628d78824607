"""Files and index: each event once, whatever was cut off where."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sink.names import part, path_of, safe
from deploy.sink.store import INDEX, Resume, Store, StoreError, read
from handlers.delivery import Item
from tests.sink.lab import contents, ids


def item(number: int, session: str | None = "s1", source: str | None = None, **more: Any) -> Item:
    event = {
        "aep": "0.1",
        "id": f"e{number}",
        "type": "progress.status",
        "time": "2026-01-01T00:00:00Z",
        "source": source or f"aep://host/agent/kimi-code/session/{session}",
        "agent": "kimi-code",
        "session": session,
        "seq": number,
        **more,
    }
    found = read(json.dumps(event).encode())
    assert found is not None
    return found


def opened(root: Path, rotate: int = 1 << 30) -> Store:
    return Store(root, rotate=rotate)


def test_each_event_is_one_line_in_the_file_of_its_session(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = [item(number, f"s{number % 2}") for number in range(10)]
    assert store.write(batch) == 10
    assert store.write([*batch[3:], item(10)]) == 1
    assert store.count() == 11
    store.close()
    found = contents(tmp_path)
    assert set(found) == {"host/kimi-code/s0", "host/kimi-code/s1"}
    assert [event["seq"] for event in found["host/kimi-code/s0"]] == [0, 2, 4, 6, 8]


def test_what_is_written_is_what_came(tmp_path: Path) -> None:
    store = opened(tmp_path)
    body = '{"type": "a.b",\n "id":"1", "source":"aep://h/x", "agent":"ä", "session":"\\u00fc",  "n": 1.0}'
    found = read(body.encode())
    assert found is not None
    store.write([found])
    store.close()
    (path,) = tmp_path.glob("*/*/*.jsonl")
    assert path.read_text() == body.replace("\n", " ") + "\n"


def test_it_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    for start in range(0, 30, 10):
        store = opened(tmp_path)
        assert store.count() == start
        store.write([item(number) for number in range(max(0, start - 5), start + 10)])
        store.close()
    assert ids(tmp_path) == [f"e{number}" for number in range(30)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_crash_leaves_is_repaired(tmp_path: Path, seed: int) -> None:
    """Data beyond the index, torn anywhere; then the same events come again."""
    generator = random.Random(seed)
    store = opened(tmp_path)
    store.write([item(number) for number in range(5)])
    store.close()
    index = {path.name: path.read_bytes() for path in tmp_path.glob(f"{INDEX}*")}
    store = opened(tmp_path)
    store.write([item(number) for number in range(5, 10)])
    store.close()
    for path in tmp_path.glob(f"{INDEX}*"):
        path.unlink()
    for name, content in index.items():
        (tmp_path / name).write_bytes(content)
    (path,) = tmp_path.glob("*/*/*.jsonl")
    whole = path.read_bytes()
    committed = len(b"".join(whole.splitlines(keepends=True)[:5]))
    cut = generator.randrange(committed, len(whole) + 1)
    tail = generator.choice([b"", b"\0" * generator.randrange(1, 50), b'{"type":"a'])
    path.write_bytes(whole[:cut] + tail)
    store = opened(tmp_path)
    assert contents(tmp_path)["host/kimi-code/s1"] == [
        json.loads(line) for line in path.read_text().splitlines()
    ]
    store.write([item(number) for number in range(3, 12)])
    store.close()
    assert sorted(ids(tmp_path), key=lambda name: int(name[1:])) == [f"e{number}" for number in range(12)]


def test_the_index_is_made_anew_from_the_files(tmp_path: Path) -> None:
    store = opened(tmp_path, rotate=600)
    for start in range(0, 20, 2):
        store.write([item(start), item(start + 1)])
    store.close()
    assert len(list(tmp_path.glob("*/*/*.jsonl"))) > 3
    for path in tmp_path.glob(f"{INDEX}*"):
        path.unlink()
    store = opened(tmp_path)
    assert store.count() == 20
    assert store.write([item(number) for number in range(21)]) == 1
    assert store.positions(9) == [Resume("s1", 0, 20)]
    store.close()
    assert ids(tmp_path) == [f"e{number}" for number in range(21)]


def test_a_torn_line_that_is_whole_is_kept(tmp_path: Path) -> None:
    at = tmp_path / "host" / "kimi-code" / "s1.jsonl"
    at.parent.mkdir(parents=True)
    at.write_bytes(item(0).body + b"\n" + item(1).body)
    store = opened(tmp_path)
    assert store.count() == 2
    assert store.repaired == 0
    store.close()
    assert ids(tmp_path) == ["e0", "e1"]


def test_files_of_others_keep_their_lines(tmp_path: Path) -> None:
    at = tmp_path / "a" / "b" / "notes.jsonl"
    at.parent.mkdir(parents=True)
    at.write_text('{"mine":1}\nnot json\n{"mine":2}\n')
    elsewhere = tmp_path / "deep.jsonl"
    elsewhere.write_text("torn")
    opened(tmp_path).close()
    assert at.read_text() == '{"mine":1}\nnot json\n{"mine":2}\n'
    assert elsewhere.read_text() == "torn"


def test_parts_are_set_aside_in_order(tmp_path: Path) -> None:
    store = opened(tmp_path, rotate=1_000)
    for number in range(40):
        store.write([item(number)])
        if number % 7 == 0:
            store.close()
            store = opened(tmp_path, rotate=1_000)
    store.close()
    names = sorted(path.name for path in tmp_path.glob("*/*/*.jsonl"))
    assert {"s1~1.jsonl", "s1~2.jsonl"} <= set(names)
    assert all(path.stat().st_size < 1_400 for path in tmp_path.glob("*/*/*.jsonl"))
    assert ids(tmp_path) == [f"e{number}" for number in range(40)]


def test_a_crash_between_setting_aside_and_the_index(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([item(number) for number in range(5)])
    store.close()
    (path,) = tmp_path.glob("*/*/*.jsonl")
    os.rename(path, path.with_name("s1~1.jsonl"))
    store = opened(tmp_path)
    assert store.write([item(number) for number in range(7)]) == 2
    store.close()
    assert ids(tmp_path) == [f"e{number}" for number in range(7)]


def test_one_folder_one_sink(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match="another sink"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(b"no database at all, but long enough" * 100)
    with pytest.raises(StoreError, match="damaged"):
        opened(tmp_path)


def test_a_full_disk_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.write([item(0)])

    def full(descriptor: int, data: Any) -> int:
        real(descriptor, bytes(data)[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.write
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        store.write([item(1), item(2)])
    monkeypatch.undo()
    store.close()
    store = opened(tmp_path)
    assert store.repaired == 1
    assert store.write([item(1), item(2)]) == 2
    store.close()
    assert ids(tmp_path) == ["e0", "e1", "e2"]


def test_positions_are_the_lowest_of_a_name_and_the_latest_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([item(5, "a"), item(900, "b"), item(7, "b", source="aep://other/agent/x/session/b")])
    store.write([item(6, "a"), item(2, "a", id="late"), item(1, "c", epoch=3), item(9, "c")])
    assert store.positions(9) == [Resume("c", 3, 1), Resume("a", 0, 6), Resume("b", 0, 7)]
    assert store.positions(1) == [Resume("c", 3, 1)]
    store.close()


def test_late_events_and_those_without_a_position_are_kept_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([item(100), item(50, id="late")])
    nowhere = item(1, id="agent-wide", session=None, seq=None)
    command = item(
        0, id="command", type="control.cancel", agent="phone", source="aep://phone/agent/phone", seq=None
    )
    assert store.write([nowhere, command, item(50, id="late"), nowhere]) == 2
    store.close()
    assert set(contents(tmp_path)) == {"host/kimi-code/s1", "host/kimi-code/_agent", "phone/phone/s1"}


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../../etc/passwd", "/etc/passwd", "C:\\x", "a\0b", "-rf", "~root", "con", "NUL.txt", "é",
     "💥", "%", "%2e%2e", " ", "a b", "\ud800", "x" * 500, "s~1", ".hidden", "\n", "a/b", "_agent"],
)  # fmt: skip
def test_hostile_names_stay_inside(tmp_path: Path, name: str) -> None:
    root = tmp_path / "out"
    store = opened(root)
    store.write([item(1, name, source=f"aep://{name.replace('/', '')}/x", agent=name)])
    store.close()
    (path,) = root.glob("*/*/*.jsonl")
    assert path.resolve().is_relative_to(root.resolve())
    assert set(tmp_path.iterdir()) == {root}
    assert "~" not in safe(name) or len(name) > 100


@given(st.text(), st.text())
def test_names_are_safe_and_their_own(one: str, two: str) -> None:
    for name in (one, two):
        found = safe(name)
        assert len(found) <= 120
        assert found[:1].isalnum() or found[:1] == "%"
        assert set(found) <= set("%~-_.") | set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        )
        assert safe(name) == found
    assert (safe(one) == safe(two)) == (one == two)


def test_the_file_of_an_event() -> None:
    assert path_of({"source": "aep://h/agent/a", "agent": "a", "session": "s"}) == "h/a/s.jsonl"
    assert path_of({"source": "urn:x", "agent": "a", "session": ""}) == "_/a/_agent.jsonl"
    assert path_of({"source": "aep://[bad", "session": 7}) == "_/_/_agent.jsonl"
    assert part("h/a/s.jsonl", 3) == "h/a/s~3.jsonl"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"{", b'{"source":1,"id":"x","type":"a.b"}', b"\xff"])
def test_what_is_no_event_is_not_kept(body: bytes) -> None:
    assert read(body) is None
