# Two commands need nothing but Python, make and a package registry: `make demo` and `make test`.
#
# Everything runs as `.venv/bin/python -m …` with paths relative to this folder, so that the folder's own name may hold a
# space. pip is left to its own configuration: to take a CPU build of torch, or another index, set PIP_EXTRA_INDEX_URL,
# PIP_FIND_LINKS or a pip.conf as for any other project.
#
#   make test ARGS="-k taps -x"          more arguments for pytest (or for the command, or the benchmark)
#   make test WORKERS=8                  more processes
#   make test-gpu ENV= PY=python3        in an environment of your own, which has lisse (and experiments/) and pytest already

PYTHON  ?= python3
VENV    := .venv
PY      ?= $(VENV)/bin/python
ENV     ?= $(VENV)/.installed
LOCK    ?=
WORKERS ?= 2
ARGS    ?=

# Two processes with one thread each are steadier, and on few cores faster, than threads that fight for them.
export OMP_NUM_THREADS ?= 1

PYTEST := $(PY) -m pytest
comma  := ,

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# --- environments ---------------------------------------------------------------------------------------------------

# $(call environment,FOLDER,FILE WITH CONSTRAINTS,EXTRAS): a virtual environment with lisse and its
# experiments in it, editable.
# The build back end comes first and isolation is off, so that constraints hold for it too.
# With LOCK=lock.txt everything but torch is installed by its hashes before that, which leaves torch alone to be found.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lisse needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 …")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)."; exit 1; }
	@echo "Installing lisse into $(1) (once; some minutes, most of them torch)"
	@$(PYTHON) -m venv $(1)
	@$(if $(LOCK),$(1)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --require-hashes --no-deps --requirement $(LOCK))
	@$(1)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint $(2) hatchling editables
	@$(1)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-build-isolation --constraint $(2) --editable '.[$(3)]' --editable ./experiments
endef

.PHONY: env
env: $(VENV)/.installed ## The environment in .venv, with every extra and the development tools

$(VENV)/.installed: pyproject.toml experiments/pyproject.toml constraints.txt
	$(call environment,$(VENV),constraints.txt,all$(comma)dev)
	@touch $@

# --- use ------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: $(ENV) ## The main job on images drawn here: a page that compares two networks
	@$(PY) -m lisse demo $(ARGS)

# --- tests ----------------------------------------------------------------------------------------------------------
# LISSE_DATA, where it is set, reaches every test: the folder with the real data sets.

.PHONY: test test-slow test-gpu test-browser test-large campaign
test: $(ENV) ## The default suite: within 8 minutes on 2 cores
	$(PYTEST) -n $(WORKERS) $(ARGS)

test-slow: $(ENV) ## Tests that take longer; one installs the wheel into a bare environment
	$(PYTEST) -m 'slow and not gpu and not browser and not large' -n $(WORKERS) $(ARGS)

test-gpu: $(ENV) ## Tests that need a CUDA device
	$(PYTEST) -m gpu $(ARGS)

test-browser: $(ENV) chromium ## Tests that open a report in Chromium
	$(PYTEST) -m browser $(ARGS)

campaign: $(ENV) ## Kills, damaged files, full disks against lisse: MINUTES=30, SEED=0
	$(PY) tools/campaign.py --minutes $(or $(MINUTES),30) --seed $(or $(SEED),0) $(ARGS)

# Debian's own package; elsewhere, whatever Chromium or Chrome is on the PATH.
.PHONY: chromium
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing chromium" \
	       && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || { echo "test-browser: needs Chromium on the PATH (Debian: apt-get install chromium)."; exit 1; }

test-large: $(ENV) ## Tests on the real data sets (LISSE_DATA=folder)
	@[ -n "$$LISSE_DATA" ] || { echo "test-large: LISSE_DATA must name the folder with the data sets, got nothing."; exit 1; }
	$(PYTEST) -m large -n $(WORKERS) $(ARGS)

# Environments of their own, beside .venv. torch is what constraints.txt says in every one of them.
MINIMUM := .venv-minimum
VISION  := .venv-vision

.PHONY: test-minimum test-vision
test-minimum: $(MINIMUM)/.installed ## The default suite with the oldest versions pyproject.toml allows (but torch)
	$(MINIMUM)/bin/python -m pytest -n $(WORKERS) $(ARGS)

$(MINIMUM)/.installed: pyproject.toml experiments/pyproject.toml constraints.txt tools/minimum.py
	@mkdir -p $(MINIMUM)
	@$(PYTHON) tools/minimum.py > $(MINIMUM)/pins.txt
	$(call environment,$(MINIMUM),$(MINIMUM)/pins.txt,all$(comma)dev)
	@touch $@

# A torchvision that was not built for this very torch breaks transformers, so it never enters .venv.
test-vision: $(VISION)/.installed ## timm and torchvision models, in an environment of their own
	$(VISION)/bin/python -m pytest tests/integration $(ARGS)

$(VISION)/.installed: pyproject.toml experiments/pyproject.toml constraints.txt
	$(call environment,$(VISION),constraints.txt,dev$(comma)timm$(comma)torchvision)
	@touch $@

# --- checks ---------------------------------------------------------------------------------------------------------

.PHONY: lint format types docs check
lint: $(ENV) ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(ENV) ## ruff: rewrite the files in place
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(ENV) ## mypy
	$(PY) -m mypy

docs: $(ENV) ## The site in site/, where a warning is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)

check: lint types docs test ## lint, types, docs and test

# --- the rest -------------------------------------------------------------------------------------------------------

.PHONY: bench wheel clean
bench: $(ENV) ## Every benchmark; ARGS=--write keeps the figures in benchmarks/results
	@for file in benchmarks/*.py; do \
	  case "$$file" in benchmarks/timing.py|benchmarks/verdict_*|benchmarks/large_*) continue;; esac; { echo "== $$file"; $(PY) "$$file" $(ARGS) || exit 1; }; \
	done

wheel: $(ENV) ## Wheels and sources of lisse and of its experiments in dist/, checked as a registry would
	rm -rf dist
	$(PY) -m build --sdist --wheel --no-isolation
	$(PY) -m build --sdist --wheel --no-isolation --outdir dist experiments
	$(PY) -m twine check --strict dist/*

clean: ## Remove what was built and cached; the environments (.venv…) stay
	rm -rf build dist site lisse-demo .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src experiments tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
