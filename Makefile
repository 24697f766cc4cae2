# Every word depends on `setup`, which is quick when nothing changed. `make` alone lists the words.
# The fastest build of what python3 is; asked for when the environment is made.
PYTHON ?= $(or $(shell python3 tools/interpreter.py),python3)
# An environment of another Python cannot be made into one of this, so it goes.
WHICH := import sys; print(sys.base_prefix, sys.version)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Tests start hundreds of Pythons, and without bytecode that is kept each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check fmt test chaos verify verify-long docs demo run bench profile peers ci clean

help: ## list the words
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything for development

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/semel/*/*.pyx)
	@python='$(PYTHON)'; which="$$($$python -c '$(WHICH)')" || exit 1; \
	[ "$$($(BIN)/python -c '$(WHICH)' 2>&1)" = "$$which" ] || rm -rf $(VENV); \
	$$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,spark]'
	$(BIN)/python -m tools.spark_classes
	@touch $@

check: setup ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup ## every test that needs no peer and no hour, and the shortest size of the proof
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m verification test

chaos: setup ## kill -9 under load: 50 times idempotent and while deleting, 200 times in transactions
	SEMEL_KILLS=50 $(BIN)/python -m pytest tests/chaos/test_kill.py tests/chaos/test_kill_while_deleting.py
	SEMEL_KILLS=200 $(BIN)/python -m pytest tests/chaos/test_kill_transactions.py

verify: setup ## simulation, defects, power loss, fuzzing, chaos and 100 kills of a pipeline (about an hour)
	$(BIN)/python -m verification verify

verify-long: setup ## the same, ten times as much, and the long tests of Spark, unattended
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m verification long

run: setup ## a broker on 127.0.0.1:9092 that keeps its data in ./semel-data
	$(BIN)/semel serve --data semel-data --listen 127.0.0.1:9092

bench: setup ## measure beside Apache Kafka and the client's floor, write docs/benchmarks.md (more than an hour; BENCH=--quick for a look)
	$(BIN)/python -m bench $(BENCH)

profile: setup ## a flame graph of the broker under each workload, into results/profiles
	$(BIN)/python -m bench.profile

docs: setup ## write the generated parts of the docs
	$(BIN)/python -m tools.docs

demo: setup ## an exactly-once pipeline on Spark, with SIGKILL in the middle of batches (under three minutes)
	$(BIN)/python -m demo

peers: setup ## Java, Go and Apache Kafka beside Semel (needs Maven and Go)
	$(BIN)/python -m pytest peers --timeout 900

ci: check test ## what CI runs

clean: ## remove what make made
	rm -rf $(VENV) build src/*.egg-info src/semel/*/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
