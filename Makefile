# Two commands: `make demo` builds the embedded default and answers about a picture; `make test` passes every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := build,gates,dev

.PHONY: demo test env build families lint unit clean

demo: build
	$(BIN)/molmo2 ask --image examples/cat.jpg "What is in the picture?" --timings

test: build families lint unit

env: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

build: env
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake all

families: env
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake gates --configfile config/family-qwen.yaml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake gates --configfile config/family-olmo.yaml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake gates --configfile config/family-causal.yaml

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile rules
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --lint

unit: build families
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest --numprocesses 2

clean:
	rm -rf artifacts .snakemake
