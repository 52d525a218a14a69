# Every target sets up what it needs from a fresh clone; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup test test-image test-slurm test-torch nightly test-api-fuzz check demo bench rules openapi lock clean
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

test-torch: setup ## the PyTorch form of the example job, here and on a real Slurm; Debian's python3-torch as root
	@bash .ci/setup-torch
	$(BIN)/python -m pytest -m torch -rs

nightly: setup ## what takes too long for every change: the real Slurm with a kill between any two steps, and torch
	@bash .ci/setup-torch
	RELIGHT_CHAOS=all $(BIN)/python -m pytest -m "slurm or torch" -rs

test-api-fuzz: setup ## a minute of requests made from the API's description against a running service
	$(BIN)/python -m pytest -m fuzz tests/fuzz

test-image: setup ## the image, built and run without a daemon; needs root, buildah, podman and runc
	$(BIN)/python -m pytest -m image tests/deploy -rs

demo: setup ## a simulated cluster with faults, and its console on 127.0.0.1
	$(BIN)/relight demo

bench: setup ## one benchmark, as in: make bench NAME=diagnose
	$(BIN)/python -m benchmarks.$(or $(NAME),diagnose)

rules: setup ## format, lint, test and document every signature
	$(BIN)/relight rules fmt rules/packs
	$(BIN)/relight rules lint
	$(BIN)/relight rules docs docs/signatures

openapi: setup ## refresh the API snapshot that tests compare with
	$(BIN)/python -m service.api.openapi

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate
lock: setup ## resolve requirements.lock anew, and what is installed from it in production
	$(BIN)/$(LOCK) --upgrade --group dev pyproject.toml -o requirements.lock
	$(BIN)/$(LOCK) --constraint requirements.lock --extra otel pyproject.toml -o deploy/requirements.lock
	$(BIN)/$(LOCK) --constraint requirements.lock --group pyproject.toml:build -o deploy/build.lock

clean: ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
