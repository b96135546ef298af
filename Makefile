# Everything does its own set-up: a virtual environment in .venv, the servers' jars once into .cache.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SHELL := bash
SANDBOX := $(CURDIR)/.run/sandbox
export DAGSTER_HOME ?= $(CURDIR)/.run/dagster
export PULSAR_LIFECYCLE_SANDBOX ?= $(SANDBOX)

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test check simulate ui bench bench-metastore bench-deletion bench-offload clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## Make the virtual environment

$(STAMP): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not on the PATH: install Python 3.11, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || { echo "make: $(PYTHON) is not Python 3.11 or 3.12: say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

lock: setup ## Write requirements.lock anew from pyproject.toml; UPGRADE=1 takes the newest versions
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-annotate \
	  --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade,) --quiet --output-file requirements.lock

demo: setup ## Find, plan and delete leaked ledgers on a real cluster in miniature
	@mkdir -p $(DAGSTER_HOME) && cp dagster.yaml $(DAGSTER_HOME)/
	@$(BIN)/python -m sandbox.demo

test: setup check ## Every test; starts the servers it needs, two sandboxes at a time; those without servers run beside them
	@mkdir -p .run; nice $(BIN)/python -m pytest --ignore=tests/integration $(PYTEST_ARGS) > .run/test.log 2>&1 & others=$$!; \
	$(BIN)/python -m pytest tests/integration -n 2 --dist loadfile $(PYTEST_ARGS); servers=$$?; \
	wait $$others; others=$$?; cat .run/test.log; exit $$(( servers || others ))

check: setup ## Linters, types and import rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 30; test $${PIPESTATUS[0]} -eq 0
	@$(BIN)/pyright

simulate: setup ## Random schedules of brokers, operators and faults against the deletion code (SEEDS=10000 FROM=0)
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)

ui: setup ## The Dagster UI on the sandbox, at http://127.0.0.1:3000
	@$(BIN)/python -m sandbox.cli start
	@mkdir -p $(DAGSTER_HOME) && cp dagster.yaml $(DAGSTER_HOME)/
	@PULSAR_LIFECYCLE_CONFIG=$(PULSAR_LIFECYCLE_SANDBOX)/lifecycle.toml $(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p 3000

bench: bench-metastore bench-deletion bench-offload ## Every benchmark, side by side with its peer

bench-metastore: setup ## Scan and plan against the BookKeeper shell
	@$(BIN)/python bench/metastore.py

bench-deletion: setup ## Deletion against the BookKeeper client and shell
	@$(BIN)/python bench/deletion.py

bench-offload: setup ## Offloading and reading back against the bare transfers
	@$(BIN)/python bench/offload.py

clean: ## Stop the sandbox and remove what was made; the cache stays
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m sandbox.cli stop --purge; fi
	@rm -rf .run .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse $(VENV)
