# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
PYTEST_JOBS ?= 2
CORPUS_ARGS ?=
CLIENTS ?= .cache/clients
SCANNER ?= .cache/scanner

.PHONY: help demo docs test test-gpu test-clients test-ray test-slurm corpus corpus-gpu scan scan-shipped lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch -e '.[test]'
	touch $@

demo: $(STAMP) ## compile a small model, break it, diagnose it
	$(BIN)/python examples/demo.py

test: $(STAMP) ## run the tests that need no GPU
	$(BIN)/python -m pytest -m 'not gpu and not ray and not slurm' -n $(PYTEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-gpu: ## run the tests that need a CUDA device, with the python3 that has torch
	$(PYTHON) -m pytest -m gpu $(PYTEST_ARGS)

test-ray: $(STAMP) ## run the tests of sweep on a local Ray cluster of two nodes
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[ray]'
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

scan: $(STAMP) $(SCANNER)/.installed ## let a scanner of skills look at all that `npx skills add` installs
	$(BIN)/python -m tests.security.scanner $(SCANNER)/bin/skill-scanner

scan-shipped: $(STAMP) $(SCANNER)/.installed ## the same without tests and benchmarks, as CI does
	$(BIN)/python -m tests.security.scanner $(SCANNER)/bin/skill-scanner --shipped

docs: $(STAMP) ## build the documentation's site into .cache/site; a dead link fails
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/flag_table.py --check
	$(BIN)/python tools/pages.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(STAMP) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite to the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and the caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
