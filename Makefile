# Two commands do everything on a fresh machine with Python 3.10+, pip and make:
#   make demo    install, profile an example model on whatever device is here, show the report
#   make test    install, run the whole test suite
# The rest is for people who change kinetoscope.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

PROSE  := README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md action.yml mkdocs.yml docs examples scripts src web/src benchmarks

.PHONY: demo test check docs site format bench release clean

demo: $(VENV)/.demo
	@sh examples/demo.sh $(BIN)

# Three workers for two cores: an eighth of the tests' time is waiting.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist loadfile -rs $(ARGS)

check: $(VENV)/.dev site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell $(PROSE)

# The site in site/, with a failure for each link that leads nowhere; `make docs` serves it on this machine alone.
site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve -a 127.0.0.1:8000

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Commands' CPU, as ratios to floors of the same minutes, and memory; fails where one became slower.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/ratios.py $(ARGS)

# The wheel and sdist in dist/, tried in every Python that is here.
release:
	PYTHON=$(PYTHON) sh scripts/release.sh

clean:
	rm -rf $(VENV) recordings dist site

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install '$(TORCH)' numpy
	$(PIP) install -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install -e '.[dev]'
	@touch $@
