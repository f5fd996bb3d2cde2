# `make` sets up and regenerates every table; `make test` sets up and runs the tests.
# Both can be repeated: what is done is not done again.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin

.PHONY: all setup published site test help

all: setup
	@"$(BIN)/python" -m relation plan
	@echo
	@echo "Running: snakemake --cores all"
	PATH="$(BIN):$$PATH" snakemake --cores all
	@echo "Report: results/smoke/report/index.html"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  "Python %d.%d is not supported; set PYTHON to one of 3.11, 3.12, 3.13" % v)'
	@echo "Setting up $(VENV): a virtual environment with the pinned packages"
	$(PYTHON) -m venv $(VENV)
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e ".[pipeline,report,test]"
	@touch $@

published: setup
	PATH="$(BIN):$$PATH" snakemake --snakefile workflow/published.smk --cores all

site: published
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e ".[pipeline,report,test,site]"
	"$(BIN)/python" -m relation site
	@echo "Serve it: python3 -m http.server --directory site"

test: setup
	@echo 'Running the tests; those of the smoke campaign only where "make" has run it'
	PATH="$(BIN):$$PATH" python -m pytest -m "not slow and not slurm" -n auto \
	  --dist loadfile --no-loadscope-reorder

help:
	@echo "make          set up .venv, then snakemake --cores all (smoke campaign, CPU)"
	@echo "make published  reports of the shipped results, results/published/*/report/index.html"
	@echo "make site     those reports, the documentation and the reference in one folder, site/"
	@echo "make test     set up .venv, then the tests"
	@echo "make setup    only set up .venv"
