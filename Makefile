# A machine with Python 3.11 or newer and make needs nothing else: every target sets up its environment first.
PYTHON ?= python3
VENV ?= .venv
# At most four workers; a file stays on one worker, so its compiled functions and fixtures are shared.
PYTEST_FLAGS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Every annotated shape and type in the library is checked on every call that a test makes. That takes a
# fifth of the time: it is done for files that reach every room.
SHAPES := --jaxtyping-packages=ramify,beartype.beartype
SHAPED := $(addprefix tests/test_,fit.py marginal.py metrics.py posterior.py formula_posterior.py \
	numpyro_posterior.py report.py loo.py update.py gaussian.py levels_blocks.py)

PY := $(VENV)/bin/python
STAMP := $(VENV)/.ramify-installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format bench clean

help: ## Say what the targets do
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

setup: $(STAMP) ## Create the environment; again whenever what it was made from changes

$(STAMP): pyproject.toml constraints.txt src/ramify/_version.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "Ramify needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + \
	    "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP) ## Is a flight late, by aircraft: fit it, predict for new aircraft, write demo/report.html
	$(PY) -m ramify demo

test: lint ## Lint, types, tests and docstring examples (all but the slow ones)
	$(PY) -m pytest $(PYTEST_FLAGS) $(addprefix --ignore=,$(SHAPED))
	$(PY) -m pytest $(PYTEST_FLAGS) $(SHAPES) $(SHAPED)

test-slow: $(STAMP) ## The tests marked slow, which compute more than they compile
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=3" $(PY) -m pytest $(PYTEST_FLAGS) -m slow --durations 30

lint: $(STAMP) ## Style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m basedpyright --pythonpath $(PY)

format: $(STAMP) ## Put the code into the house format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP) ## Measure step time and memory
	$(PY) -m benchmarks

clean: ## Remove caches and build products, and set up afresh next time (the environment itself stays)
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis $(STAMP)
	find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +
