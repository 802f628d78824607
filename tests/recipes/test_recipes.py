"""The files of `deploy/`: read by their own validators where those are installed, and by us everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from handlers.settings import Settings
from tests.recipes.machine import blocks

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


class _Template(yaml.SafeLoader):
    """CloudFormation's short forms, kept as plain values."""


_Template.add_multi_constructor("!", lambda loader, suffix, node: {suffix: node.value})


def documents(path: Path) -> list[Any]:
    return list(yaml.load_all(path.read_text(), Loader=_Template))


def known_variables() -> set[str]:
    """Every setting that the service reads."""
    return set(re.findall(r'"(AEP_[A-Z_]+)"', (ROOT / "handlers" / "settings.py").read_text()))


def run(*command: str, **env: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_named_in_the_recipes_exist() -> None:
    own = {"AEP_DOMAIN", "AEP_UPSTREAM", "AEP_TLS"}  # of the proxy's files
    named: dict[str, set[str]] = {}
    for path in DEPLOY.rglob("*"):
        if path.suffix in {".yaml", ".example", ".service", ".conf"} or path.name in {
            "Dockerfile",
            "Caddyfile",
        }:
            named[path.name] = set(re.findall(r"\bAEP_[A-Z_]+\b", path.read_text())) - own
    assert sum(map(len, named.values())) > 10
    unknown = {name: words - known_variables() for name, words in named.items()}
    assert {name: words for name, words in unknown.items() if words} == {}


def test_the_example_environment_is_one_that_serve_accepts(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "environment.example").read_text()
    lines = [line.lstrip("# ") for line in text.splitlines() if "=" in line and not line.endswith("=")]
    settings = Settings.from_env(dict(line.split("=", 1) for line in lines))
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.tokens_file == "/etc/aep-kimi/tokens"
    assert settings.relay_url == "wss://relay.example.org"


def test_the_guide_names_what_exists_in_shell_that_parses() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    host, user, later = blocks(guide)
    assert (len(host), len(user), len(later)) == (8, 2, 1)
    named = set(re.findall(r"(?:/opt/aep-kimi/|`|-[ft] )(deploy/[\w./*@-]+\w)", guide))
    assert len(named) > 5
    assert [name for name in named if not any(ROOT.glob(name))] == []
    for script in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL):
        run("bash", "-n", "-c", script)


def test_compose_keeps_state_and_rights_small() -> None:
    [compose] = documents(DEPLOY / "docker" / "compose.yaml")
    services = compose["services"]
    for name in ("aep", "relay"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    command = services["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert services["aep"]["deploy"]["replicas"] >= 2


def test_compose_by_its_own_program() -> None:
    path = str(DEPLOY / "docker" / "compose.yaml")
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) is None:
            continue
        version = subprocess.run([*command, "version"], capture_output=True, check=False)
        if version.returncode == 0:
            run(*command, "-f", path, "config", "-q", AEP_DOMAIN="aep.example.org")
            return
    pytest.skip("docker compose is not installed")


def test_the_image_runs_as_nobody_in_particular() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "tests"} <= set(ignored)


def test_kubernetes_asks_the_right_doors() -> None:
    kinds = {document["kind"]: document for document in documents(DEPLOY / "kubernetes" / "aep-kimi.yaml")}
    assert set(kinds) == {
        "Deployment",
        "Service",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "Ingress",
    }
    [container] = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    grace = kinds["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= 10


def test_kubernetes_schema() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in documents(DEPLOY / "kubernetes" / "aep-kimi.yaml"):
        validator.validate(document, validator.latest_version(), strict=True)


def test_lambda_template() -> None:
    [template] = documents(DEPLOY / "lambda" / "template.yaml")
    function = template["Resources"]["Service"]
    assert function["Properties"]["Handler"] == "handlers.aws.handler"
    assert any(event["Type"] == "Schedule" for event in function["Properties"]["Events"].values())
    # A hold that outlives the function would end without its answer.
    variables = function["Properties"]["Environment"]["Variables"]
    assert int(variables["AEP_ATTENTION_TIMEOUT_MS"]) / 1000 < function["Properties"]["Timeout"] - 5
    assert re.search(r"^build-Service:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_lambda_template_by_its_linter() -> None:
    linter = shutil.which("cfn-lint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("cfn-lint is not installed")
    run(linter, str(DEPLOY / "lambda" / "template.yaml"))


def test_units_by_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in (DEPLOY / "systemd").glob("*.service"):
        # It looks for the program too, which is not installed here.
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text)
        run("systemd-analyze", "verify", str(tmp_path / unit.name))


def test_caddyfile_by_caddy() -> None:
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    path = str(DEPLOY / "proxy" / "Caddyfile")
    domain = {"AEP_DOMAIN": "aep.example.org", "AEP_UPSTREAM": "aep-kimi-1:8398 aep-kimi-2:8398"}
    run("caddy", "validate", "--adapter", "caddyfile", "--config", path, **domain)
    run("caddy", "validate", "--adapter", "caddyfile", "--config", path, **domain, AEP_TLS="tls internal")


def test_nginx_site_by_nginx(tmp_path: Path) -> None:
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    key, certificate = tmp_path / "k.pem", tmp_path / "c.pem"
    made = f"-keyout {key} -out {certificate} -days 1 -subj /CN=aep.example.org"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made.split())
    site = (DEPLOY / "proxy" / "nginx.conf").read_text()
    site = re.sub(r"/etc/ssl/certs/\S+(?=;)", str(certificate), site)
    site = re.sub(r"/etc/ssl/private/\S+(?=;)", str(key), site).replace("/var/log/nginx", str(tmp_path))
    whole = f"pid {tmp_path}/pid; events {{}} http {{ {site} }}"
    (tmp_path / "nginx.conf").write_text(whole)
    run("nginx", "-t", "-q", "-e", str(tmp_path / "error.log"), "-c", str(tmp_path / "nginx.conf"))
