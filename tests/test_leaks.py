"""The key-leak check finds what it is for, and what it finds fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import leaks

ROOT = Path(__file__).parents[1]

CARELESS = """
async def test_one(client, keys):
    await client.call("aep:forgotten", "SET", "aep:forgotten", "1")
    await client.call("t7:x", "SET", "t7:x", "1", "PX", "60000")

async def test_two(own_server):
    own_server.run("SET", "elsewhere", "1", "PX", "60000")

def test_three():
    pass
"""


def test_what_is_a_leak() -> None:
    fine = {b"aep:x": 5, b"t12:{07}:x": 1, b"aep:layout": -1, b"t3:layout": -1, b"aep:hand:n": -1}
    assert leaks(fine) == []
    wrong = {b"aep:x": -1, b"other:x": 5, b"aepx": 5, b"t:x": 5, b"aep:layouts": -1, b"layout": -1}
    assert leaks(fine | wrong) == [
        "without a lifetime: b'aep:x'",
        "outside the prefix: b'other:x'",
        "outside the prefix: b'aepx'",
        "outside the prefix: b't:x'",
        "without a lifetime: b'aep:layouts'",
        "outside the prefix: b'layout'",
    ]


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_leak_fails_a_run_whose_tests_pass(tmp_path: Path, workers: tuple[str, ...]) -> None:
    tests = tmp_path / "test_careless.py"
    tests.write_text(CARELESS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "AEP_"))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path)]
    ini = ("-c", str(ROOT / "pyproject.toml"), "--touching-redis")
    found = subprocess.run(
        [*command, *ini, *workers, str(tests)],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 passed" in found.stdout, found.stdout + found.stderr
    assert "3 keys left by 2 tests, 2 leaked" in found.stdout
    assert "LEAK test_careless.py::test_one left a key without a lifetime: b'aep:forgotten'" in found.stdout
    assert "LEAK test_careless.py::test_two left a key outside the prefix: b'elsewhere'" in found.stdout
    assert found.returncode == 1
