PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test
test:
	PYTHONPATH=src $(PYTHON) -m pytest
