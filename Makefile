# Everything does its own set-up: a virtual environment in .venv, the servers' jars once into .cache.
# The first that runs of those that PySpark, Dagster and pulsar-client support; a name on the PATH may be a shim that does not
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do $$name -c '' 2>/dev/null && echo $$name && exit; done; echo python3.11)
# How many server tests run at a time, each with servers of its own (about 2.5 GB): they mostly wait
SERVER_WORKERS ?= 4
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SHELL := bash
TEST_ARGS = --durations=40 $(PYTEST_ARGS)
# By module, in our order; without the last xdist waits for ever once a worker crashed
SPREAD := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
SANDBOX := $(CURDIR)/.run/sandbox
# A shell may forbid it; each of hundreds of processes would then compile the library anew
unexport PYTHONDONTWRITEBYTECODE
# That of a production is not ours to write to: a sandbox has a folder of its own
unexport DAGSTER_HOME
export PULSAR_LIFECYCLE_SANDBOX ?= $(SANDBOX)

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test check docs simulate ui bench bench-metastore bench-deletion bench-offload bench-lifecycle bench-delayed bench-delete-records clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(STAMP) ## Make the virtual environment

# Without compiling: most of it is never imported
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || { echo "make: found no Python 3.11 to 3.14 that runs: install one, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

lock: setup ## Write requirements.lock anew from pyproject.toml; UPGRADE=1 takes the newest versions
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-annotate \
	  --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade,) --quiet --output-file requirements.lock

demo: setup ## Delete leaked ledgers, offload topics and free a disk, on a real cluster in miniature
	@$(BIN)/python -m sandbox.demo

test: setup ## Check, then every test; those with servers, several at a time, beside all else; log in .run/
	@mkdir -p .run; \
	{ nice make --no-print-directory check && nice $(BIN)/python -m pytest --ignore=tests/integration -n 2 $(SPREAD) $(TEST_ARGS); } > .run/test.log 2>&1 & others=$$!; \
	$(BIN)/python -m pytest tests/integration -n $(SERVER_WORKERS) $(SPREAD) $(TEST_ARGS) 2>&1 | tee .run/server-tests.log; \
	servers=$${PIPESTATUS[0]}; wait $$others; others=$$?; cat .run/test.log; \
	echo "make test took $$(( SECONDS / 60 )) min $$(( SECONDS % 60 )) s"; exit $$(( servers || others ))

check: setup ## Linters, types and import rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 30; test $${PIPESTATUS[0]} -eq 0
	@$(BIN)/pyrefly check --min-severity error --summary=none

docs: setup ## The documentation, in site/; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html; to search it without the internet: $(BIN)/python -m http.server -d site"

simulate: setup ## Random schedules of brokers, operators and faults against the runs of the product (SEEDS=10000 FROM=0)
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)

ui: setup ## Start the sandbox and the Dagster UI on it, and say where that is
	@$(BIN)/python -m sandbox.cli start
	@$(BIN)/python -m sandbox.cli ui

bench: bench-metastore bench-deletion bench-offload bench-lifecycle bench-delayed bench-delete-records ## Every benchmark, side by side with its peer

bench-metastore: setup ## Scan and plan against the BookKeeper shell
	@$(BIN)/python bench/metastore.py

bench-deletion: setup ## Deletion against the BookKeeper client and shell
	@$(BIN)/python bench/deletion.py

bench-offload: setup ## Offloading and reading back against the bare transfers
	@$(BIN)/python bench/offload.py

bench-lifecycle: setup ## The retention plan against the scan and the admin API
	@$(BIN)/python bench/lifecycle.py

bench-delayed: setup ## The index of delayed messages against the broker's own tracker, and a rebuild against a broker
	@$(BIN)/python bench/delayed.py
	@$(BIN)/python bench/delayed_rebuild.py

bench-delete-records: setup ## Delete records of 1,000 partitions against the bare writes and the admin API
	@$(BIN)/python bench/delete_records.py

clean: ## Stop the sandbox and remove what was made; the cache stays
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m sandbox.cli stop --purge; fi
	@rm -rf .run .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse site $(VENV)
