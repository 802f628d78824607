"""`aep-kimi validate`: what it prints and how it exits."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from deploy.cli import validate
from tests.aep.test_streams import event


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    validate.add_parser(parser.add_subparsers())
    args = parser.parse_args(["validate", *arguments])
    return validate.run(args)


def written(tmp_path: Path, *lines: str | bytes, name: str = "events.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))
    return str(path)


GOOD = json.dumps(event(1, "run.started", run="r"))


def test_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(written(tmp_path, GOOD, json.dumps(event(2, "run.finished", run="r")))) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "2 events, 0 problems\n"


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    assert run(written(tmp_path, GOOD.encode())) == 0


def test_problems_name_line_and_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        tmp_path,
        GOOD,
        "",
        "{not json",
        b"\xff\xfe\n",
        json.dumps(event(1, "progress.status", id="other")),
        json.dumps(event(3, "tool.requested")),
        json.dumps(event(4, "tool.requested", data={})),
        "[]",
        "[" * 100_000,
    )
    assert run(path) == 1
    out, err = capsys.readouterr()
    assert [line.split(":")[1] for line in out.splitlines()] == ["2", "3", "4", "5", "7", "8", "9"]
    assert f"{path}:5: seq: 1 comes after 1 (AEP-0001 §7.2)" in out
    assert f"{path}:7: data.tool: is missing (AEP-0002 §5)" in out
    assert err == "8 events, 7 problems\n"


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--quiet", written(tmp_path, "x")) == 1
    assert capsys.readouterr() == ("", "")


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode() + b"\nx\n")))
    assert run("-") == 1
    assert capsys.readouterr().out.startswith("<stdin>:2: not JSON")


@pytest.mark.parametrize("path", ["absent.jsonl", "."])
def test_not_readable(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / path)) == 2
    assert "aep-kimi validate:" in capsys.readouterr().err


def test_several_files_stand_each_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path, GOOD, name="a.jsonl")
    again = written(tmp_path, GOOD, name="b.jsonl")
    assert run(good, again) == 0
    assert capsys.readouterr() == ("", "2 events, 0 problems\n")
    bad = written(tmp_path, GOOD, "x", name="c.jsonl")
    assert run(bad, good) == 1
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == [f"{bad}:2"]
    assert err == "3 events, 1 problems\n"


@pytest.mark.parametrize("order", [0, 1])
def test_the_others_are_checked_where_one_is_not_readable(
    order: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = written(tmp_path, "x")
    files = [str(tmp_path / "absent"), bad]
    assert run(*files[::-1] if order else files) == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"{bad}:1: ")
    assert "absent" in err
    assert run("--quiet", *files) == 2


def test_standard_input_among_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    assert run(written(tmp_path, GOOD), "-") == 1
    assert capsys.readouterr().out.startswith("<stdin>:1: ")
