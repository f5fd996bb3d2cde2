# `make` sets up .venv and makes the report of the smoke campaign. `make help` lists all targets.

PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
# Name of a file in locks/. Without an NVIDIA GPU, PyTorch's CPU build saves gigabytes of CUDA.
LOCK ?= $(if $(shell command -v nvidia-smi 2>/dev/null),cuda,cpu)
READY := .venv/.ready-$(LOCK)
INSTALL := "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps
RUN := PATH="$(BIN):$$PATH"
UV := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --extra pipeline --extra report --extra test --extra site -c constraints.txt

.PHONY: all setup published site test lock help

all: setup
	@$(RUN) python -m relation plan
	$(RUN) snakemake
	@echo "Report: results/smoke/report/index.html"

published: setup
	$(RUN) snakemake published
	@echo "Report: results/published/report/index.html"

site: published
	$(RUN) sphinx-build --quiet -W --keep-going -c docs . site
	@echo "Serve it: python3 -m http.server --directory site"

test: setup
	$(RUN) python -m pytest -m "not slow and not slurm" -n auto --dist loadfile --no-loadscope-reorder

setup: $(READY)

$(READY): pyproject.toml locks/$(LOCK).txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  "Python %d.%d is not supported; use 3.11 to 3.13, for example make PYTHON=python3.12" % v)'
	@for other in .venv/.ready-*; do \
	  if [ -e "$$other" ] && [ "$$other" != "$@" ]; then rm -rf .venv; fi; done
	@echo "Setting up .venv with the packages of locks/$(LOCK).txt; this takes a few minutes"
	[ -x "$(BIN)/python" ] || $(PYTHON) -m venv .venv
ifeq ($(LOCK),cpu)
	$(INSTALL) --extra-index-url https://download.pytorch.org/whl/cpu \
	  "torch==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu"
endif
	$(INSTALL) --require-hashes -r locks/$(LOCK).txt
# compat writes a .pth file; without it, a script next to the clone imports a clone named relation/.
	$(INSTALL) --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

# Write both locks from pyproject.toml and constraints.txt; needs uv.
lock:
	$(UV) -o locks/cuda.txt
	$(UV) --config-file locks/cpu.toml --no-emit-package torch -o locks/cpu.txt

help:
	@echo "make            set up .venv, then run the smoke campaign on a CPU"
	@echo "make published  write the report of the shipped results, results/published/report/index.html"
	@echo "make site       write that report and the documentation to site/"
	@echo "make test       set up .venv, then run the tests"
	@echo "make setup      only set up .venv; LOCK=cpu or LOCK=cuda chooses its versions"
	@echo "make lock       write locks/ again from pyproject.toml and constraints.txt, with uv"
