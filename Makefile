# make demo: install, then solve a real chain. make test: install with torch, then every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test clean

demo: $(VENV)/installed
	$(BIN)/schedopt solve --chain instances/gpt2-small.json --gpus 4 --mem 2G --bandwidth 12GB/s -o plan.json
	$(BIN)/schedopt check plan.json
	$(BIN)/schedopt show plan.json

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "torch==2.13.0"
	$(INSTALL) -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info plan.json
