# mendgraph: `make` prints what there is. Needs python3 (3.11.4 to 3.14), git and make; the rest stays in this folder.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
CHOSEN := $(if $(filter file,$(origin PYTHON)),,--python $(PYTHON))
ARGS ?=
UV_VERSION := 0.13
BIN := .venv/bin

# The uv on the path, if it is new enough for our lock file; else one of our own.
UV := $(shell uv --version 2>/dev/null | grep -qE '^uv (0\.(1[3-9]|[2-9][0-9])|[1-9])' && echo uv || echo .tools/uv/bin/uv)
OWN_UV := $(filter .tools/%,$(UV))

# Byte code makes our commands start twice as fast, and .venv is the one environment that they use.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH VIRTUAL_ENV UV_PROJECT_ENVIRONMENT

.PHONY: help setup sandbox browser postgres demo test sweep coverage lint docs record studio bench scale pure eval everyday commits redteam fuzz mutants planted clean

help: ## list the targets
	@echo "usage: make <target> [ARGS='more arguments for the command behind it']"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.synced ## prepare .venv from uv.lock (other targets run it automatically)

sandbox: ## install bubblewrap, the sandbox of programs (without it Landlock is used, from Linux 6.2)
	@command -v bwrap >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	  && apt-get install -y -q bubblewrap >/dev/null && command -v bwrap; } \
	  || echo "bubblewrap is missing, so programs run below Landlock or not at all (Debian, Ubuntu: sudo apt install bubblewrap)"

browser: ## install Chromium, Node and tmux for the tests of pages and terminals (skipped without them)
	@lacking() { \
	    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	      || printf ' chromium'; \
	    command -v chromedriver >/dev/null || printf ' chromium-driver'; \
	    command -v node >/dev/null || printf ' nodejs'; \
	    command -v npm >/dev/null || printf ' npm'; \
	    command -v tmux >/dev/null || printf ' tmux'; \
	  }; \
	  [ -z "$$(lacking)" ] || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] \
	    || DEBIAN_FRONTEND=noninteractive apt-get install -y -q $$(lacking) </dev/null >/dev/null 2>&1 \
	    || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $$(lacking); } </dev/null >/dev/null 2>&1 \
	    || true; \
	  [ -z "$$(lacking)" ] || echo "missing for the tests of pages and terminals, which are skipped; all else works" \
	    "(Debian, Ubuntu: sudo apt install$$(lacking))"; \
	  case "$$(lacking)" in *nodejs*|*npm*) ;; *) $(MAKE) -s tests/browser/build/.made 2>&1 \
	    || echo "the npm packages of tests/browser are not there, so its tests are skipped; all else works (see above)";; esac

postgres: ## install PostgreSQL and PgBouncer for the tests of the shared store (skipped without them)
	@lacking() { \
	    command -v initdb >/dev/null || [ -n "$$(echo /usr/lib/postgresql/[0-9]*/bin/initdb | grep -v '\[')" ] || printf ' postgresql'; \
	    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || printf ' pgbouncer'; \
	  }; \
	  [ -z "$$(lacking)" ] || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] \
	    || DEBIAN_FRONTEND=noninteractive apt-get install -y -q $$(lacking) </dev/null >/dev/null 2>&1 \
	    || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $$(lacking); } </dev/null >/dev/null 2>&1 \
	    || true; \
	  [ -z "$$(lacking)" ] || echo "missing for the tests of the shared store, which are skipped; all else works" \
	    "(Debian, Ubuntu: sudo apt install$$(lacking))"

demo: .venv/.demo ## fix a real bug with the embedded model (the first time it downloads 1.1 GB)
	@$(BIN)/python -P benchmarks/demo/demo.py $(ARGS)

test: setup ## run the tests, offline, but the slow ones (see make sweep)
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/architecture -m "not slow" $(ARGS)

SWEEP ?= all
sweep: setup ## run the slow tests, kill a run at every call that changes the disk, explore the graph further (CI: SWEEP=turns)
	@MENDGRAPH_SWEEP=$(SWEEP) $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 1800 -m "slow or sampled or nightly" $(ARGS)

coverage: setup ## run all tests and require 97 % of all branches, 99 % of those of the pure files
	@$(BIN)/coverage erase
	@# A thread that is interrupted inside of coverage's own lock keeps it for ever: one test is left out.
	@$(BIN)/coverage run -m pytest -n 2 --dist loadfile --ignore tests/architecture --ignore tests/benchmarks $(ARGS) \
		--deselect tests/workspace/files/test_deadline.py::test_nothing_changes_after_a_timeout
	@$(BIN)/coverage combine -q
	@echo "--- all files of graph/ and nodes/"
	@$(BIN)/coverage report --fail-under=97 --omit=none
	@echo "--- the pure files"
	@$(BIN)/coverage report

lint: setup ## run ruff, mypy, pyright on the examples in docs/, the import contracts and tests/architecture
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m tests.contract.documents build/examples
	@$(BIN)/mypy -n 2 mendgraph tests benchmarks build/examples
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pytest -q -n 2 tests/architecture

docs: setup ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f .mkdocs.yml $(ARGS)

record: setup ## record the runs of tests/recorded again with the embedded model
	@MENDGRAPH_RECORD=1 $(BIN)/pytest -p no:cacheprovider --timeout 1800 tests/recorded $(ARGS)

studio: setup ## serve the graph for LangGraph Studio, and print its local address
	@$(BIN)/langgraph dev --no-reload --n-jobs-per-worker 10 $(ARGS)

bench: setup ## measure the cost of a run without its model, compared with other frameworks
	@$(BIN)/python -P benchmarks/run.py $(ARGS)

scale: setup ## start up to 200 parallel runs; measure runs per second, CPU, memory and store
	@$(BIN)/python -P benchmarks/scale/run.py $(ARGS)

pure: setup ## time the hot pure functions, and fail if one is not linear
	@$(BIN)/pytest -p no:cacheprovider benchmarks/pure $(ARGS)

eval: setup ## solve real tasks with the embedded model (ARGS="--against create_agent,pydantic-ai,aider" compares)
	@$(BIN)/python -P benchmarks/real_model/run.py $(ARGS)

everyday: setup ## send thirteen everyday requests to the embedded model, and count wrong results
	@$(BIN)/python -P benchmarks/everyday/run.py $(ARGS)

commits: setup ## repeat real commits with a scripted, perfect model (ARGS="REPOSITORY ..." of git repositories)
	@$(BIN)/python -P benchmarks/commits/run.py $(ARGS)

redteam: setup ## attack mendgraph and other agents with a model that obeys every text, also in AgentDojo's suites
	@$(BIN)/python -P benchmarks/redteam/run.py $(ARGS)

EXAMPLES ?= 5000
fuzz: setup ## attack the parsers and stores with random input (EXAMPLES=100000 ARGS="-k redact")
	@MENDGRAPH_EXPLORE=$(EXAMPLES) $(BIN)/pytest -n 2 tests/fuzz $(ARGS)

mutants: setup ## make small changes to the pure files, and count those that no test detects
	@$(BIN)/python -P benchmarks/mutants/run.py $(ARGS)

planted: setup ## plant known faults in a copy, and fail if a test file does not detect one (ARGS="sandbox nodes/heal")
	@$(BIN)/python -P benchmarks/planted/run.py $(ARGS)

clean: ## remove what make has created in this folder (not the model's weights)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .fuzz .import_linter_cache .hypothesis .benchmarks .coverage*
	rm -rf .langgraph_api build dist site mendgraph.egg-info tests/browser/node_modules tests/browser/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

tests/browser/build/.made: tests/browser/package-lock.json tests/browser/agent_chat.config.mjs
	@cd tests/browser && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null >/dev/null
	@cd tests/browser && node_modules/.bin/vite build --config agent_chat.config.mjs </dev/null
	@touch $@

.venv/.synced: pyproject.toml uv.lock | $(OWN_UV)
	@$(UV) sync $(CHOSEN) --locked --all-extras --no-extra harbor --compile-bytecode
	@touch $@

.venv/.demo: pyproject.toml uv.lock | $(OWN_UV)
	@$(UV) sync $(CHOSEN) --locked --inexact --no-dev --extra local --compile-bytecode
	@touch $@

.tools/uv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 15))' 2>/dev/null || { \
	  found=$$($(PYTHON) -V 2>&1) || found=missing; \
	  echo "mendgraph needs Python 3.11.4 to 3.14, and $(PYTHON) is $$found: try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu the package python3-venv)"; exit 1; }
	@echo "installing uv into .tools/"
	@$(PYTHON) -m venv .tools/uv
	@.tools/uv/bin/pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION).*'
