"""Known vulnerabilities in what is installed. Exit 1 only for those; says plainly when it cannot look.

pip-audit asks the package index about each package. An index that is away, or a mirror that does not know
about vulnerabilities, is no finding, and no proof of health either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Make an environment for pip-audit beside the project's own, run it, judge what it wrote."""
    site = next((ROOT / ".venv" / "lib").glob("python*/site-packages"), None)
    if site is None:
        return not_done("there is no .venv; run 'make setup'")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        python = Path(directory, "venv", "bin", "python")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
        audit = [str(python), "-m", "pip_audit", "--path", str(site), "--format", "json"]
        audit += ["--progress-spinner", "off", "--timeout", "10", "--output", str(report)]
        for command, seconds in (
            ([sys.executable, "-m", "venv", str(python.parents[1])], 120),
            (install, 180),
            (audit, 180),
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            except (OSError, subprocess.TimeoutExpired) as error:
                return not_done(str(error))
            if done.returncode != 0 and command is not audit:
                return not_done(done.stderr.strip()[-300:])
        if not report.exists():
            return not_done(done.stderr.strip()[-300:])
        return judge(json.loads(report.read_text()))


def judge(report: dict[str, list[dict[str, object]]]) -> int:
    """Print what was found."""
    packages = report["dependencies"]
    asked = [package for package in packages if "skip_reason" not in package]
    if len(asked) * 2 < len(packages):
        return not_done(f"this index knows about {len(asked)} of {len(packages)} packages")
    wrong = [package for package in asked if package.get("vulns")]
    for package in wrong:
        print(f"{package['name']} {package['version']}: {json.dumps(package['vulns'])}")
    print(f"audited {len(asked)} of {len(packages)} packages: {len(wrong)} with known vulnerabilities")
    return 1 if wrong else 0


def not_done(why: str) -> int:
    """Say so; no finding."""
    print(f"NOT AUDITED: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
