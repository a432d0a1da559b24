# `make book` and `make test` do everything on a fresh machine with Python 3.11 or newer.
# Variables: PYTHON=python3.12 (which Python makes .venv), NB=book/tour.ipynb (one notebook), REPO=owner/name (for `make address`),
#            TORCH_INDEX=address (take torch from that package index), JOBS=2 (test processes).

SHELL := /bin/sh
PY := .venv/bin/python
JOBS ?= 2
export JOBS
export PYTHON
export TORCH_INDEX
# DGL asks for its backend on the first import and prints unless it is told.
export DGLBACKEND := pytorch
# The rendered pages and stored outputs must not depend on the reader's settings.
export PYTHONWARNINGS :=
export PYDEVD_DISABLE_FILE_VALIDATION := 1

.DEFAULT_GOAL := help
.PHONY: help env book test test-colab lab execute lint format address figures clean

help:  ## this list
	@echo "Usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

env:  ## make or refresh the environment in .venv/
	@sh book/_tools/environment.sh

book: env  ## render the book to _build/html, warnings as errors
	@sh book/_tools/build.sh

test: env  ## style, unit tests, every chapter strictly, the book, the browser
	@sh book/_tools/check.sh

test-colab: env  ## every chapter on the torch backend with DGL blocked, as on Colab
	@sh book/_tools/check_colab.sh

lab: env  ## open the chapters in JupyterLab
	@$(PY) -m jupyterlab book

execute: env  ## run chapters in place and strip volatile metadata (NB=book/x.ipynb for one)
	@$(PY) book/_tools/execute.py $(NB)

lint: env  ## ruff: style of code and notebooks
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

format: env  ## ruff: mend what can be mended
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format .

address: env  ## REPO=owner/name: write the repository's address everywhere it is used
	@$(PY) book/_tools/address.py "$(REPO)"

figures: env  ## draw book/figures/overview.svg again
	@$(PY) book/_tools/draw_overview.py

clean:  ## remove what was built (.venv stays; remove that by hand)
	@rm -rf _build build .pytest_cache .ruff_cache .hypothesis && echo "Removed _build and the caches."
