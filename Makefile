# make demo          a dataset written, opened and loaded: what demoreel does, in a minute
# make test          lint, types and tests: what a change must pass
# make soak          kills, power cuts, random cases, clusters and servers: minutes
# make conformance   item by item, what lerobot, lerobot-lancedb and demoreel read from the same folders
# make gpu           frames that a GPU decodes, on a machine that has one: exact, and how fast
# make bench         how fast, beside lerobot on this machine
# make lint          style and types alone; `make format` mends style
# make clean         removes .venv and caches, but not the lerobot environment in ~/.cache/demoreel
#
# The first of them makes .venv. PYTHON=... chooses the interpreter.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := torch

# The pins in constraints.txt were resolved for 3.11, so that comes first. A name on PATH may be
# a shim without an interpreter behind it: run it to find out.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
		>/dev/null 2>&1 && { echo $$python; break; }; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check
# -qq still shows errors; it hides warnings about the machine's own pip settings.
PIP_INSTALL := $(PIP) install -qq

# Tests of one file share a process. Those marked `alone` measure time or memory and come after.
PYTEST := $(BIN)/python -m pytest
# One worker more than there are cores: tests wait for disks and for processes that they start.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Tests start hundreds of processes; each would compile demoreel anew where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test soak lint format conformance gpu bench clean

help:
	@sed -n '/^# make/s/^# //p' Makefile

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "demoreel needs Python 3.11 or newer" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON) (a minute or two, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP_INSTALL) --upgrade 'pip>=25.1'
	@$(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRAS)]' --group dev
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/python -m demoreel.testing.demo

test: lint
	$(PYTEST) $(PARALLEL) -m "not alone and not soak"
	$(PYTEST) -m "alone and not soak" || test $$? -eq 5  # 5: no test is marked so

soak: $(INSTALLED)
	$(PYTEST) $(PARALLEL) -m "soak and not alone"
	$(PYTEST) -m "soak and alone"

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

conformance: $(INSTALLED)
	@lerobot=$$($(BIN)/python conformance/environment.py) && \
	lancedb=$$($(BIN)/python conformance/lancedb_environment.py); status=$$?; \
	if [ $$status -eq 75 ]; then echo "conformance: skipped" >&2; exit 0; fi; \
	[ $$status -eq 0 ] || exit $$status; \
	DEMOREEL_LEROBOT_PYTHON=$$lerobot DEMOREEL_LANCEDB_PYTHON=$$lancedb $(PYTEST) conformance

gpu: $(INSTALLED)
	$(BIN)/python bench/gpu_video.py

bench: $(INSTALLED)
	@python=$$($(BIN)/python conformance/environment.py) || \
		echo "bench: without lerobot to compare with" >&2; \
	DEMOREEL_LEROBOT_PYTHON=$$python $(BIN)/python bench/read.py

clean:
	rm -rf $(VENV) build dist demo bench/results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench conformance -name __pycache__ -prune -exec rm -rf {} +
