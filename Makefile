# Every target depends on `setup`, which is fast when nothing changed. `make` alone lists the targets.
# The fastest build of the python3 version; looked up when the environment is created.
PYTHON ?= $(or $(shell python3 tools/interpreter.py),python3)
# An environment of another Python cannot be converted, so it is removed.
WHICH := import sys; print(sys.base_prefix, sys.version)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Tests start hundreds of Python processes; without cached bytecode each of them compiles everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check fmt test steady chaos verify verify-long docs demo demo-cluster run browser screenshots bench profile peers suites ci clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with everything for development

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/semel/*/*.pyx src/semel/*/*.pxi)
	@python='$(PYTHON)'; which="$$($$python -c '$(WHICH)')" || exit 1; \
	[ "$$($(BIN)/python -c '$(WHICH)' 2>&1)" = "$$which" ] || rm -rf $(VENV); \
	$$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev,spark,console]'
	$(BIN)/python -m tools.spark_classes
	@touch $@

check: setup ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## format, and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup ## every test that needs no other broker, and the shortest verification run
	$(BIN)/python -m tools.suite --verify

RUNS ?= 5
steady: setup ## run the tests RUNS=5 times beside two busy loops, and list those that fail by chance
	$(BIN)/python -m tools.suite.steady --runs $(RUNS)

chaos: setup ## kill -9 under load: 50 times each with idempotent producers, during deletion and under queue workers, 200 times in transactions
	SEMEL_KILLS=50 $(BIN)/python -m pytest tests/chaos/test_kill.py tests/chaos/test_kill_while_deleting.py tests/chaos/test_kill_share_workers.py
	SEMEL_KILLS=200 $(BIN)/python -m pytest tests/chaos/test_kill_transactions.py

verify: setup ## tests marked slow, simulation, defects, power loss, fuzzing, chaos, pipeline kills, protocol tests over a cluster (hours)
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m long tests/cluster
	$(BIN)/python -m verification verify

verify-long: setup ## ten times as much, and the long Spark tests
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m verification long

run: setup ## run a broker on 127.0.0.1:9092 with its data in ./semel-data
	$(BIN)/semel serve --data semel-data --listen 127.0.0.1:9092

# Debian's browser, driven by playwright; without it the tests of the console in a browser are skipped by name.
browser: ## install chromium for the tests of the console, where that is possible (Debian, as root)
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then \
	  echo "chromium is installed"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null && echo "installed chromium"; } \
	    || echo "chromium could not be installed: tests in a browser are skipped"; \
	else \
	  echo "chromium is not installed and cannot be installed here (it needs apt-get and root): tests in a browser are skipped"; \
	fi

screenshots: setup browser ## write the pictures of docs/console.md to docs/console
	$(BIN)/python -m tools.screenshots

bench: setup ## compare with Apache Kafka and the mock cluster, write docs/benchmarks.md (about two hours, forty minutes of them for old snapshots; BENCH=--quick is shorter)
	$(BIN)/python -m bench $(BENCH)

profile: setup ## write a flame graph of the broker for each workload to results/profiles
	$(BIN)/python -m bench.profile

docs: setup ## write the generated parts of the docs
	$(BIN)/python -m tools.docs

demo: setup ## run an exactly-once pipeline on Spark with SIGKILL in the middle of batches (under three minutes)
	$(BIN)/python -m demo

demo-cluster: setup ## the same on three brokers over PostgreSQL and S3, of which PostgreSQL is killed too (under four minutes)
	$(BIN)/python -m demo.cluster

peers: setup ## test one broker and a cluster with the Java client, franz-go and Kafka's tools, and 20 kills under Spark (needs Maven and Go)
	$(BIN)/python -m pytest peers --timeout 900

suites: setup ## run other projects' suites and programs against Semel and Apache Kafka, write docs/compatibility.md (20 minutes; needs Maven, Go, npm)
	$(BIN)/python -m suites

ci: browser check test ## everything that CI runs

clean: ## remove everything that make created
	rm -rf $(VENV) build peers/build suites/build src/*.egg-info src/semel/*/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
