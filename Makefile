# `make train` and `make test` are enough on a fresh machine with Python 3.11 or newer: each makes .venv first.
PYTHON ?= python3
TORCH ?= torch>=2.9,<2.14
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: train test check install bench device-check clean

train: install  ## run the default experiment to its end
	$(BIN)/lifelong train experiment=switching_bandit

test: install
	$(BIN)/python -m pytest tests $(PYTEST)

check: install links  ## lint, format, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.links $(BIN)/mypy -p lifelong.kernels -p lifelong.memory -p lifelong.envs -p lifelong.agents -p lifelong.experiments
	$(BIN)/lint-imports

device-check: install  ## on a machine with a GPU: correctness, then speed; writes kernels/RESULTS.md
	$(BIN)/python benchmarks/device_check.py

bench: install
	$(BIN)/lifelong bench

install: $(VENV)/.installed

# torch first and by itself, so that TORCH=torch==2.13.0 can pick a build (CI takes a CPU one).
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# Type checkers need the folders under their import name.
.PHONY: links
links:
	mkdir -p .links/lifelong
	for folder in agents memory kernels envs experiments; do ln -sfn ../../$$folder .links/lifelong/$$folder; done

clean:
	rm -rf $(VENV) .links build *.egg-info
