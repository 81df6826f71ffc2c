# make setup | demo | test | proof | lint | clean. Each does what it needs first, in a fresh clone too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test proof lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard headstart/kernels/src/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[server,dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/headstart demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The core is stdlib only: its tests run once more where torch, numpy and the rest cannot be imported.
test: lint
	$(BIN)/python -m pytest -q -n auto
	$(BIN)/python -m pytest -q -p tests.no_torch tests/core

# The joint law of three tokens for every drafter and rule, at full size: about ten minutes.
proof: $(STAMP)
	HEADSTART_SAMPLES=50000 $(BIN)/python -m pytest -q -n auto tests/core/test_acceptance.py tests/engine/test_joint_law.py

clean:
	rm -rf $(VENV) build dist *.egg-info headstart/kernels/_kernels*.so .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find headstart tests -name __pycache__ -type d -prune -exec rm -rf {} +
