# Every target sets up what it needs from a fresh clone; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup test test-slurm test-api-fuzz check demo bench rules openapi lock clean
BIN := .venv/bin

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## virtual environment with the locked packages; quick when nothing changed
	@bash .ci/setup

check: setup ## format, lint, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: check ## everything that must hold before a merge
	$(BIN)/python -m pytest -n 2

test-slurm: setup ## the controller on a real Slurm, installed from Debian's packages; needs root
	$(BIN)/python -m pytest -m slurm tests/slurm -rs

test-api-fuzz: setup ## a minute of requests made from the API's description against a running service
	$(BIN)/python -m pytest -m fuzz tests/fuzz

demo: setup ## a simulated cluster with faults, and its console on 127.0.0.1
	$(BIN)/relight demo

bench: setup ## one benchmark, as in: make bench NAME=diagnose
	$(BIN)/python -m benchmarks.$(or $(NAME),diagnose)

rules: setup ## lint and test every signature
	$(BIN)/relight rules lint

openapi: setup ## refresh the API snapshot that tests compare with
	$(BIN)/python -m service.api.openapi

lock: setup ## resolve requirements.lock anew
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --group dev pyproject.toml -o requirements.lock

clean: ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
