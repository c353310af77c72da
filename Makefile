# `make demo` and `make test` need Python 3.10 or newer and nothing else: they set up a virtual environment in .venv,
# install into it and run. The second time they only run.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all lint docs results bench dist clean

demo: $(VENV)/.installed
	$(BIN)/mixreg reproduce two-moons --scale paper --out out/demo

# One test per core, each with one thread.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, in out/site; a warning is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Figures, verdicts, the report and README.md's section on them, from the stored runs.
results: $(VENV)/.installed-dev
	$(BIN)/mixreg reproduce --redraw --out results
	$(BIN)/python docs/readme.py

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/mixed_loss.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/risk.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/moons.py
	$(BIN)/python benchmarks/data.py

# Wheel and sdist in dist/, checked, installed into an empty environment and used there.
dist: $(VENV)/.installed-dev
	$(BIN)/python .ci/dist.py

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[train]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) out dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
