# Needs nothing but make and Python 3.11 or newer; everything else is installed into .venv from locks/.
# Debian's own first: it is built with optimisation, pyenv's isn't and takes 1.3 times as long. Without venv none will do.
ifndef PYTHON
PYTHON := $(firstword $(shell for each in /usr/bin/python3.11 python3.11 python3; do \
	"$$each" -c 'import ensurepip' 2>/dev/null && command -v "$$each"; done; command -v python3))
endif
# Another interpreter gets an environment of its own: make quick PYTHON=python3.13 VENV=.venv-3.13
VENV := .venv
BIN := $(VENV)/bin
# Containers often set it; then each process compiles the program, and each test run all tests, anew.
unexport PYTHONDONTWRITEBYTECODE
PROGRAM := $(VENV)/.program
TESTS := $(VENV)/.tests
READY := $(VENV)/.ready
BENCH := benchmarks/.venv/bin
BENCH_READY := benchmarks/.venv/.ready
DOCS := .venv-docs/bin
DOCS_READY := .venv-docs/.ready

# Refuses to install outside of $(VENV), whatever python a damaged environment leads to.
PIP := PIP_REQUIRE_VIRTUALENV=1 $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
BENCH_PIP := PIP_REQUIRE_VIRTUALENV=1 $(BENCH)/python -m pip --quiet --disable-pip-version-check
DOCS_PIP := PIP_REQUIRE_VIRTUALENV=1 $(DOCS)/python -m pip --quiet --disable-pip-version-check

# uv keeps what is locked already and moves a version only where pyproject.toml asks for it, or with LOCK=--upgrade.
UV_COMPILE = "$(abspath $(BIN))/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK)
TESTED_EXTRAS := --extra apns --extra aws --extra google --extra postgresql --extra mysql --extra otlp
COMPILE_LOCKS = $(UV_COMPILE) --group build -o locks/build.txt && \
	$(UV_COMPILE) --group docs -o locks/docs.txt && \
	$(UV_COMPILE) pyproject.toml -o locks/runtime.txt && \
	$(UV_COMPILE) pyproject.toml --extra sql -c locks/runtime.txt -o locks/sql.txt && \
	$(UV_COMPILE) pyproject.toml --extra postgresql -c locks/sql.txt -o locks/postgresql.txt && \
	$(UV_COMPILE) pyproject.toml --extra mysql -c locks/sql.txt -o locks/mysql.txt && \
	$(UV_COMPILE) pyproject.toml --extra otlp -c locks/runtime.txt -o locks/otlp.txt && \
	$(UV_COMPILE) pyproject.toml --extra apns -c locks/runtime.txt -o locks/apns.txt && \
	$(UV_COMPILE) pyproject.toml --extra aws -c locks/runtime.txt -o locks/aws.txt && \
	$(UV_COMPILE) pyproject.toml --extra google -c locks/runtime.txt -c locks/aws.txt -o locks/google.txt && \
	$(UV_COMPILE) pyproject.toml $(TESTED_EXTRAS) --group test -c locks/postgresql.txt -c locks/mysql.txt \
		-c locks/otlp.txt -c locks/apns.txt -c locks/aws.txt -c locks/google.txt -o locks/test.txt && \
	$(UV_COMPILE) pyproject.toml $(TESTED_EXTRAS) --group dev -c locks/test.txt -c locks/build.txt -o locks/dev.txt && \
	$(UV_COMPILE) pyproject.toml benchmarks/requirements.in --group build -c locks/runtime.txt -c locks/build.txt \
		-o locks/bench.txt

.PHONY: help setup demo quick test coverage soak presets hooks man docs lint format types layers lock lockcheck audit sbom \
	bench bench-quick bench-growth bench-costs ci clean
.DEFAULT_GOAL := help

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

setup: $(READY) ## install deliveryd and all that its development needs into .venv

# What the program itself needs, and no more: this is all that the demo installs.
$(PROGRAM): pyproject.toml locks/runtime.txt locks/build.txt
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "deliveryd needs Python 3.11 or newer; found $$("$(PYTHON)" --version 2>&1 || true)." >&2; \
		echo "Name another one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -f $(VENV)/pyvenv.cfg && $(PIP) --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "Installing into $(VENV) what deliveryd needs: $$(grep -c == locks/runtime.txt) packages, about 110 MB with pip ..."
	@$(PIP) install --no-deps --require-hashes -r locks/build.txt
	@$(PIP) install --no-deps --require-hashes -r locks/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(TESTS): $(PROGRAM) locks/test.txt
	@echo "Installing into $(VENV) what the tests need: $$(grep -c == locks/test.txt) packages, about 360 MB in all ..."
	@$(PIP) install --no-deps --require-hashes -r locks/test.txt
	@touch $@

$(READY): $(PROGRAM) locks/dev.txt
	@echo "Installing into $(VENV) what tests and checks need: $$(grep -c == locks/dev.txt) packages, about 780 MB in all ..."
	@$(PIP) install --no-deps --require-hashes -r locks/dev.txt
	@touch $(TESTS) $@

demo: $(PROGRAM) ## run the worker against the sandbox: nothing to configure, nothing leaves this machine
	@echo "Starting the stand-in service and a worker ..."
	@$(BIN)/deliveryd demo

quick: $(TESTS) ## run the fast tests on asyncio, which start no process: a minute or two
	@$(PYTEST) -m "not slow" $(ARGS)

test: setup ## run all tests, on all cores; ARGS="tests/line -k word" for some of them
	@$(PYTEST) $(ARGS)

coverage: setup ## run all tests and print the branch coverage, the least covered files first; ARGS as for test
	@status=0; $(PYTEST) --cov --cov-report= $(ARGS) || status=$$?; \
	$(BIN)/coverage report --sort=cover --skip-covered | awk 'NR <= 22 || /^TOTAL/'; exit $$status

soak: setup ## simulated plans, kills, power cuts, faults: PLANS=100000 KILLS=1000 FAULTS=300 SEED=1 (an hour or two)
	@$(BIN)/python tests/soak.py --plans $(or $(PLANS),100000) --kills $(or $(KILLS),1000) --faults $(or $(FAULTS),300) \
		--seed $(or $(SEED),1)

presets: setup ## run the cases of all presets and print their table; ARGS="twilio" for some of them
	@cd tests && ../$(BIN)/python -m presets $(ARGS)

lint: setup ## check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Not formatted as above; make format does it." >&2; exit 1; }

format: setup ## format the code
	@$(BIN)/ruff format .

hooks: setup ## check style, types and layers before each commit of this clone
	@$(BIN)/pre-commit install

types: setup ## check the types
	@$(BIN)/mypy --no-error-summary

layers: setup ## check that the layers import only downwards
	@$(BIN)/lint-imports --no-logo

lock: setup ## lock what pyproject.toml requires; LOCK=--upgrade for the newest versions
	@$(COMPILE_LOCKS)

lockcheck: LOCK :=
lockcheck: setup ## check that locks/ is what pyproject.toml requires
	@set -e; copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; mkdir "$$copy/benchmarks"; \
	cp benchmarks/requirements.in "$$copy/benchmarks"; cp -R pyproject.toml locks "$$copy"; \
	( cd "$$copy" && $(COMPILE_LOCKS) ) || { \
		echo "The locks could not be computed, see above; this needs the package registry." >&2; exit 1; }; \
	diff -ru locks "$$copy/locks" || { \
		echo "locks/ is not what pyproject.toml asks for: run make lock and commit the result." >&2; exit 1; }

audit: setup ## compare the locks with the advisories kept beside them
	@$(BIN)/python tests/support/supply_chain.py audit

sbom: setup ## write into dist/ what deliveryd is made of (CycloneDX), and what doesn't affect it (OpenVEX)
	@$(BIN)/python tests/support/supply_chain.py sbom dist

man: setup ## write man/deliveryd.1 from the help of the command line
	@$(BIN)/python man/generate.py >man/deliveryd.1

$(BENCH_READY): pyproject.toml locks/bench.txt
	@test -f benchmarks/.venv/pyvenv.cfg && $(BENCH_PIP) --version >/dev/null 2>&1 || \
		"$(PYTHON)" -m venv --clear benchmarks/.venv
	@$(BENCH_PIP) install --no-deps --require-hashes -r locks/bench.txt
	@$(BENCH_PIP) install --no-deps --no-build-isolation -e .
	@touch $@

bench: $(BENCH_READY) ## compare deliveryd with its alternatives, and keep the figures in benchmarks/results (some minutes)
	@$(BENCH)/python benchmarks/bench.py $(ARGS)

bench-quick: $(BENCH_READY) ## compare it with the floor and the best script only, in under a minute
	@$(BENCH)/python benchmarks/bench.py --quick $(ARGS)

bench-growth: $(BENCH_READY) ## measure how the figures grow with batches, places, latency, settings, waiting and ended messages, texts
	@$(BENCH)/python benchmarks/growth.py $(ARGS)

bench-costs: $(BENCH_READY) ## measure the start, idling, receipts, half load and a slow provider
	@$(BENCH)/python benchmarks/costs.py $(ARGS)

$(DOCS_READY): locks/docs.txt
	@test -f .venv-docs/pyvenv.cfg && $(DOCS_PIP) --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv-docs
	@$(DOCS_PIP) install --no-deps --require-hashes -r locks/docs.txt
	@touch $@

docs: $(DOCS_READY) ## build the documents as a site into site/; a broken link, or one that loads from outside, fails
	@$(DOCS)/python docs/draw_performance.py
	@$(DOCS)/zensical build --clean --strict
	@! grep -rlE '<(script|img|iframe)[^>]* src="?https?:|<link[^>]* href="?https?:' site --include='*.html' || { \
		echo "These pages load something from another host." >&2; exit 1; }
	@echo "To read them with search: python3 -m http.server --bind 127.0.0.1 --directory site"

ci: ## all that a change must pass, as CI runs it
	@bash .ci/run

clean: ## remove what these targets made, .venv too
	@rm -rf .venv .venv-* benchmarks/.venv .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build site .cache docs/explanation/performance
