# `make demo` and `make test` do all the set-up on a fresh machine: Python 3.11 or newer and the package registries are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo
# On Linux, PyPI's torch brings gigabytes of CUDA. PyTorch's own index has a CPU build; where it cannot be reached, PyPI's
# is taken. For a GPU: TORCH_INDEX=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# For the newest torch: CONSTRAINTS=/dev/null
CONSTRAINTS ?= constraints.txt
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)

.PHONY: demo test lint bench docs notebooks picture clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	test -z "$(TORCH_INDEX)" || $(PIP_INSTALL) --no-deps --retries 0 --timeout 15 --index-url $(TORCH_INDEX) torch \
		|| echo "no torch from $(TORCH_INDEX): taking that of PyPI"
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base requirements-dev.txt
	$(PIP_INSTALL) --editable ".[federated]" --requirement requirements-dev.txt
	touch $@

$(VENV)/.peers: $(VENV)/.dev
	$(PIP_INSTALL) --editable ".[peers]"
	touch $@

demo: $(VENV)/.base ## train on the digits that ship with scikit-learn; prints accuracy and ε, writes and names the statement
	$(BIN)/assay train --preset best --data digits --epsilon 3 --out $(RUN) --force

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint, types and the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 # for two cores: some tests wait for other processes; a thread each

bench: $(VENV)/.peers ## speed and memory against plain training and Opacus
	$(BIN)/python -m benchmarks

docs: $(VENV)/.dev ## the documentation as pages that open from disk, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

notebooks: $(VENV)/.dev ## run the notebooks and store what they print and draw
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.notebooks

picture: $(VENV)/.dev ## the pictures of a report and of TensorBoard; needs Chromium and its driver
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.picture
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.tensorboard_view

clean:
	rm -rf $(VENV)
