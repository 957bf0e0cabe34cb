# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
# `npx skills add` copies this folder, so what is made lies elsewhere; tools/made.py says the same place.
MADE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/aoti-debug/dev-$(shell printf %s '$(CURDIR)' | sha256sum | cut -c1-12)
export AOTI_DEBUG_MADE := $(MADE)
export MYPY_CACHE_DIR := $(MADE)/mypy
export RUFF_CACHE_DIR := $(MADE)/ruff
# Hundreds of processes of the tests import the same modules: each would compile all of them again.
unexport PYTHONDONTWRITEBYTECODE
# An environment that somebody made in the folder is used, too. Another counts only if given to make (VENV=…):
# the variable of a shell may name the environment of a model.
VENV := $(if $(wildcard .venv/.installed),.venv,$(MADE)/venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# From PyPI torch is the build for CUDA (3 GB); for the CPU: TORCH_INDEX=https://download.pytorch.org/whl/cpu (0.2 GB)
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c tools/constraints.txt
PYTEST_ARGS ?=
# Two more than there are cores, since tests wait for programs, limits and locks.
PYTEST_JOBS ?= $(shell echo $$(($$(nproc) + 2)))
CORPUS_ARGS ?=
CLIENTS ?= $(MADE)/clients
SCANNER ?= $(MADE)/scanner

SOURCES := mcp_server examples tools tests benchmarks

.PRECIOUS: %/.runs %/.installed
.PHONY: help env demo generated test test-thorough coverage test-gpu test-clients test-ray test-slurm corpus corpus-gpu scanner scan scan-shipped lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# What the program needs, and torch; tests need more. Each is a file in its environment: `make .venv/.installed`.
# Most modules of torch are never imported: compiling all of them takes half the time of its installation.
%/.runs: pyproject.toml tools/constraints.txt
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python -m pip install -q --no-compile --disable-pip-version-check -c tools/constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$*/bin/python -m pip install -q --disable-pip-version-check -c tools/constraints.txt -e .
	touch $@

%/.installed: %/.runs
	$*/bin/python -m pip install -q --disable-pip-version-check -c tools/constraints.txt -e '.[test]'
	touch $@

env: ## print where the environment is
	@echo $(VENV)

demo: $(VENV)/.runs ## compile a small model, break it, diagnose it
	@$(BIN)/python -m examples.demo; status=$$?; find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +; exit $$status

test: $(STAMP) ## run the tests that need no GPU
	$(BIN)/python -m pytest -o cache_dir=$(MADE)/pytest -m 'not gpu and not ray and not slurm' -n $(PYTEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-thorough: export AOTI_DEBUG_THOROUGH = 1
test-thorough: test ## the same on every model and form, which compiles for minutes more

coverage: $(STAMP) ## run the fast tests, and print which lines of the product they leave out; fails below the floor
	CI=1 COVERAGE_FILE=$(MADE)/coverage $(BIN)/python -m pytest -o cache_dir=$(MADE)/pytest -q -m 'not slow and not gpu and not ray and not slurm and not clients' -n $(PYTEST_JOBS) --dist loadfile --cov --cov-report=term $(PYTEST_ARGS)

test-gpu: ## run the tests that need a CUDA device, with the python3 that has torch
	$(PYTHON) -m pytest -m gpu $(PYTEST_ARGS)

test-ray: $(STAMP) ## run the tests of sweep on a local Ray cluster of two nodes
	$(PIP) -e '.[ray]'
	$(BIN)/python -m pytest -m ray $(PYTEST_ARGS)

test-slurm: $(STAMP) ## run the tests of srun on a local Slurm cluster of two nodes (Debian: slurm-wlm)
	$(BIN)/python -m pytest -m slurm tests/slurm $(PYTEST_ARGS)

$(CLIENTS)/.installed: tests/clients/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)/
	cd $(CLIENTS) && npm install --no-audit --no-fund --silent
	$(PYTHON) -m venv $(CLIENTS)/python
	$(CLIENTS)/python/bin/python -m pip install -q --disable-pip-version-check uv==0.13.8 pipx==1.18.4
	touch $@

test-clients: $(STAMP) $(CLIENTS)/.installed ## install the coding agents from npm, let them install and use the server
	AOTI_DEBUG_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -m clients tests/clients $(PYTEST_ARGS)

corpus: $(STAMP) ## score diagnose on the failing programs that need no GPU; CORPUS_ARGS="--cases NAME"
	$(BIN)/python -m benchmarks.corpus.score --needs cpu $(CORPUS_ARGS)

corpus-gpu: ## score diagnose on the failing programs that need a CUDA device
	$(PYTHON) -m benchmarks.corpus.score --needs cuda $(CORPUS_ARGS)

$(SCANNER)/.installed: tests/security/scanner/requirements.txt
	$(PYTHON) -m venv $(SCANNER)
	$(SCANNER)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $<
	touch $@

scanner: $(SCANNER)/.installed

scan: $(STAMP) $(SCANNER)/.installed ## let a scanner of skills look at all that `npx skills add` installs
	$(BIN)/python -m tests.security.scanner $(SCANNER)/bin/skill-scanner

scan-shipped: $(STAMP) $(SCANNER)/.installed ## the same without tests and benchmarks, as CI does
	$(BIN)/python -m tests.security.scanner $(SCANNER)/bin/skill-scanner --shipped

generated: $(STAMP) ## compare the files that are made from tables of the code
	$(BIN)/python tools/manifests.py --check
	$(BIN)/python tools/pages.py --check

lint: $(STAMP) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite to the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and the caches
	rm -rf '$(MADE)' .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
