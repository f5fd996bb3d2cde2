# `make` sets up and regenerates every table; `make test` sets up and runs the tests.
# Both can be repeated: what is done is not done again.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# One of locks/: without an NVIDIA GPU, PyTorch's CPU build, which spares gigabytes of CUDA.
LOCK ?= $(if $(shell command -v nvidia-smi 2>/dev/null),cuda-newest,cpu)
VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# Where PYTHON is not given, an environment that is there is kept, whatever its Python.
KEPT := $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(VENV)/.ready-$(LOCK)-*)))
ifneq ($(KEPT),)
PYTHON := $(VENV)/bin/python
endif
READY := $(or $(KEPT),$(VENV)/.ready-$(LOCK)-$(VERSION))
INSTALL := "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: all setup published site docs test help

all: setup
	@"$(BIN)/python" -m relation plan
	@echo
	@echo "Running: snakemake --cores all"
	PATH="$(BIN):$$PATH" snakemake --cores all
	@echo "Report: results/smoke/report/index.html"

setup: $(READY)

$(READY): pyproject.toml locks/$(LOCK).txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  "Python %d.%d is not supported; set PYTHON to one of 3.11, 3.12, 3.13" % v)'
	@$(PYTHON) -c 'import sys; old = "$(LOCK)" == "cuda-published" and sys.version_info < (3, 12); \
	  sys.exit("the published versions need Python 3.12; set PYTHON to python3.12" if old else 0)'
	@[ "$$(uname -s)" = Linux ] || { echo "the locks are for Linux; use a container" >&2; exit 1; }
	@for other in $(VENV)/.ready-*; do \
	  if [ -e "$$other" ] && [ "$$other" != "$@" ]; then rm -rf $(VENV); fi; done
	@echo "Setting up $(VENV): a virtual environment with the packages of locks/$(LOCK).txt, in a few minutes"
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),cpu)
	$(INSTALL) --extra-index-url https://download.pytorch.org/whl/cpu \
	  "torch==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu"
endif
	$(INSTALL) --require-hashes -r locks/$(LOCK).txt
# compat: a line in a .pth file. What setuptools finds packages by otherwise comes after the folder
# relation/ that a script beside the clone sees.
	$(INSTALL) --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

locks/$(LOCK).txt:
	@echo "there is no lock $(LOCK); set LOCK to one of $(basename $(notdir $(wildcard locks/*)))" >&2
	@exit 1

published: setup
	PATH="$(BIN):$$PATH" snakemake --scheduler greedy --snakefile workflow/published.smk --cores all
	@echo "Reports; that of the chosen reading is books:"
	@ls results/published/*/report/index.html

site: published
	"$(BIN)/python" -m relation site
	@echo "Serve it: python3 -m http.server --directory site"

docs: setup
	"$(BIN)/python" -m relation site --no-reports
	@echo "Open site/index.html"

test: setup
	@echo 'Running the tests; those of the smoke campaign only where "make" has run it'
	PATH="$(BIN):$$PATH" python -m pytest -m "not slow and not slurm" -n auto \
	  --dist loadfile --no-loadscope-reorder

help:
	@echo "make          set up .venv, then snakemake --cores all (smoke campaign, CPU)"
	@echo "make published  reports of the shipped results, results/published/*/report/index.html"
	@echo "make site     those reports, the documentation and the reference in one folder, site/"
	@echo "make docs     the documentation and the reference alone, site/"
	@echo "make test     set up .venv, then the tests"
	@echo "make setup    only set up .venv; LOCK=cpu, cuda-newest or cuda-published chooses its versions"
