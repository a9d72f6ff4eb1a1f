# make demo: install, then solve a real chain. make test: install with torch, then check in minutes.
# make test-all: every test, also against the engines' own packages, all random examples with new
# seeds, and faults put into the check.
# make docs: the pages as a site, build/site/index.html.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules become bytecode when they are first imported; of most of them nothing is.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

MAKEFLAGS += --jobs=2
# Else each of some 200 processes compiles all that it imports, torch included.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs check compiled test test-all clean

demo: $(VENV)/installed
	$(BIN)/schedopt solve --chain instances/gpt2-small.json --gpus 4 --mem 2G --bandwidth 12GB/s -o plan.json
	$(BIN)/schedopt check plan.json
	$(BIN)/schedopt show plan.json

docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/read . build/site
	@echo "Site: build/site/index.html"

test: check compiled
	$(PYTEST)

test-all: $(VENV)/installed-engines
	$(MAKE) check compiled
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m ""
	$(BIN)/python -m tests.mutation --sample 150 --seconds 600

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Next to check: one process compiles for all, and collects, by which pytest compiles the tests.
compiled: $(VENV)/installed-test
	$(BIN)/python -m tests.compiled
	-@$(BIN)/python -m pytest --collect-only -qq > /dev/null

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/installed-docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[docs]"
	touch $@

# First pip, if it is to be had: that of Python 3.11 takes twice the time to find a hundred packages.
$(VENV)/installed-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	-$(INSTALL) pip
	$(INSTALL) -e ".[test]"
	touch $@

# Without kernels of their own, which need compilers and GPUs; torchtitan without what only trains.
$(VENV)/installed-engines: $(VENV)/installed-test
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(INSTALL) -e ".[test,docs,engines]"
	$(INSTALL) --no-deps torchtitan
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info plan.json
