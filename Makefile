# Everything a user or a contributor needs; `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test shapes check bench clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything in it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "aep-kimi needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

run: setup ## run the service on http://127.0.0.1:8398 (no Redis needed)
	@exec $(BIN)/aep-kimi serve

test: setup ## the fast suite (embedded server on a free socket; nothing else needed)
	$(BIN)/python -m pytest -n auto -m 'not vendor and not slow and not chaos'

SHAPES = embedded $(if $(shell command -v redis-server),redis) acl cluster

shapes: setup ## the fast suite in every shape of Redis: the Valkey of ours, Redis 7, a restricted user, a cluster
	for shape in $(SHAPES); do AEP_TEST_REDIS=$$shape $(MAKE) test || exit 1; done

check: setup ## ruff, strict types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

bench: setup ## measure it against floors of the same run; prints a table, writes JSON
	$(BIN)/python -m tests.bench

clean: ## remove what setup and the tests made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What `sam build` calls for the function of deploy/lambda/template.yaml.
.PHONY: build-Service build-Relay
build-Relay: build-Service
build-Service:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target '$(ARTIFACTS_DIR)' .
