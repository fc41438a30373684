# make train and make test work on a fresh machine; nothing else is needed.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/cartpole-$(shell date +%Y%m%d-%H%M%S)

.PHONY: setup browser train test check cpus prove bench format lint type clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[atari,doom,mujoco,native,unity,video,dev]"
	touch $@

train: setup  ## the main job: train PPO on CartPole and show the result
	$(BIN)/rollmill train configs/ppo/cartpole.yaml --run $(RUN)
	$(BIN)/rollmill show $(RUN)

browser:  ## for the tests that look at pages; they are skipped where it can't be had
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
		> /dev/null 2>&1 || echo "no chromium and no way to install it: the tests that look at pages are skipped"

test: setup browser  ## every test that takes minutes at most
	$(BIN)/pytest -n 2 -m "not prove"

check: setup lint type  ## format, lint, types, fast tests: at most four minutes
	$(BIN)/pytest -n 2 -m "not prove and not slow"

cpus: setup  ## the tests that numerics can touch and a table of hashes, for every instruction set of this CPU
	$(BIN)/python benchmarks/cpus.py

prove: setup  ## the long proofs; what they print is committed under docs/
	$(BIN)/pytest -m prove -s -q --durations=0 -p no:cacheprovider | tee docs/prove.txt

bench: setup  ## ours and the peers in turn, each peer in its own venv
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/efficiency.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup
	$(BIN)/mypy

clean:
	rm -rf .venv .venvs build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
