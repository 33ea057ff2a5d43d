# `make demo` and `make test` work on a fresh clone: the first of them makes .venv from constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RLVR := $(BIN)/rlvr
INSTALLED := $(VENV)/.installed

# Two test processes of one thread each; the numbers do not depend on what else the machine has.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

FAST := tests/contract tests/golden tests/methods tests/config tests/stats tests/training/test_loop.py

.DEFAULT_GOAL := help
.PHONY: help dist install demo test test-fast test-all test-gpu gpu test-slurm test-vllm check format bench processes docs site data claims methods-table lab clean

help:
	@echo "make demo      train the lab model on Knights & Knaves and show accuracy before and after"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-fast  golden numbers, methods, configuration, statistics and a real training, in a minute"
	@echo "make test-all  every test"
	@echo "make test-gpu  what can only be tested on a GPU"
	@echo "make gpu       the checks for the first hour on a GPU, into build/gpu.jsonl"
	@echo "make test-slurm  jobs in a private Slurm (needs Debian's packages, docs/slurm.md)"
	@echo "make test-vllm VLLM_PYTHON=...  trainings that sample with vLLM (docs/rollout-engines.md)"
	@echo "make check     ruff and mypy"
	@echo "make bench     what everything takes, against TRL (an hour or two; docs/performance.md quotes it)"
	@echo "make processes  every method with two processes against one: how far the weights part"
	@echo "make docs      the generated parts of docs/methods, and what the methods cost"
	@echo "make site      the documentation as a site, in build/site"
	@echo "make dist      the wheel and the source archive of a release, in dist"
	@echo "make data      the generated problem sets in data/, and their hashes"
	@echo "make claims    train and judge what is missing of the papers' claims, into experiments/claims (hours)"
	@echo "make methods-table  train every method on every lab and write docs/methods/table.md (hours; continues where it was; ONLY='*-taskkk-*')"
	@echo "make lab       rebuild a base model of the lab from its seed, into build (LAB=countdown; default kk)"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)"; rm -rf $(VENV); exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rg]' || echo "reasoning-gym cannot be installed (its pycosat needs a C compiler and Python's headers): the tests with it will be skipped"
	@touch $@

demo: $(INSTALLED)
	$(RLVR) train --overwrite run.name=demo
	$(RLVR) eval demo --against lab --pass-at 1,8,32

test: $(INSTALLED)
	$(TEST) -m "not slow and not vllm and not gpu"

# A minute: what says first that a change broke a number. A real training of three rollouts is in test_loop.py.
test-fast: $(INSTALLED)
	$(TEST) -m "not slow and not vllm and not gpu" $(FAST)

test-all: $(INSTALLED)
	$(TEST) -m "not slurm and not vllm and not gpu"

test-gpu: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m gpu

# ONLY: some of the checks, `make gpu ONLY="update-grpo lab"`; all that have no result yet by default.
gpu: $(INSTALLED)
	$(BIN)/python -m benchmarks.gpu $(if $(ONLY),--only $(ONLY))

test-slurm: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm tests/slurm

# VLLM_PYTHON: a Python with vllm (docs/rollout-engines.md).
test-vllm: $(INSTALLED)
	@test -n "$(VLLM_PYTHON)" || { echo "name a Python that has vllm: make test-vllm VLLM_PYTHON=/path/to/python (docs/rollout-engines.md)"; exit 1; }
	VLLM_PYTHON="$(VLLM_PYTHON)" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m vllm tests/vllm

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ONLY: some of them, `make bench ONLY="updates-trl memory"`; all by default. `updates-trl` is `benchmarks.updates trl`.
MEASURED := startup updates-trl updates-lopti updates-methods steps memory sampler verifier
bench: $(INSTALLED)
	@set -e; for name in $(or $(ONLY),$(MEASURED)); do echo; echo "$$name"; \
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.$$(echo $$name | tr - ' '); done

processes: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.processes

# What is published: the wheel has the package with the labs and the recipes; the sdist what its tests need too.
dist: $(INSTALLED)
	$(BIN)/python -m hatchling build

docs: $(INSTALLED)
	$(BIN)/python -m rlvr_cli.describe.pages docs/methods
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.methods_cost > docs/methods/cost.md

# The documentation as pages that open as files. A broken link or anchor fails.
site: $(INSTALLED)
	@$(BIN)/python -c 'import mkdocs, material, mkdocstrings' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

data: $(INSTALLED)
	for set in kk-gen countdown-gen math-story-gen; do for part in train:200 dev:100 test:100; do \
	  $(RLVR) tasks generate $${set%%-*} task.data=$$set --split $${part%:*} --problems $${part#*:} --seed 0 --overwrite \
	    --output data/$$set/$${part%:*}.jsonl || exit 1; done; done
	cd data && sha256sum */*.jsonl > SHA256SUMS

# CLAIMS: some claims, papers or options, `make claims CLAIMS="gtpo --seed-from 10"`; all claims by default.
claims: $(INSTALLED)
	$(BIN)/python -m experiments.claims $(CLAIMS)

# The page shows what is finished, also after an interruption.
methods-table: $(INSTALLED)
	OMP_NUM_THREADS=1 $(RLVR) sweep sweeps/methods-table --workers 2 $(if $(ONLY),--only '$(ONLY)'); status=$$?; \
	$(BIN)/python -m experiments.studies.methods_table && exit $$status

LAB ?= kk
lab: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.lab $(LAB) --output build/lab-$(LAB)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
