# Everything runs from .venv, which deploy/bootstrap.py makes from requirements.lock; a second run finds it done.
PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.inaproto
ARGS ?=
# Many container images tell Python to keep no compiled modules: then each process that a test starts
# compiles all that it imports, which costs more than all else that it does.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := $(PY) -m pytest --numprocesses auto --maxprocesses 9 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test check lint types unit torch coverage mutation fuzz hil rtl rtltools figures bench soak crashes twins dist uv lock clean FORCE

help: ## Show this list
	@echo 'make demo          is where to begin; make test checks a change, make check everything. All targets:'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '  %-10s %s\n' "$$target" "$$text"; done

venv: $(STAMP) ## Make the environment .venv from requirements.lock

demo: $(STAMP) ## Train a small model, summed in the switch, then in racks that fail; one act: ARGS=racks
	@.venv/bin/inaproto demo $(ARGS)
ifeq ($(ARGS),)
	@.venv/bin/inaproto demo racks
endif

# The types are checked beside the tests, by a core that these leave idle.
test: lint ## Format, lint, import rules, types, and the tests that are fast
	@$(MAKE) --no-print-directory --jobs 2 types unit

check: $(if $(TESTED),,test) ## Everything: make test, then slow tests and all seeds; after a make test: make check TESTED=1; an eighth of the slow ones, another after each commit: make check SHARE=1
	$(if $(SHARE),,INAPROTO_ROTATION=all )$(PYTEST) -m '$(if $(SHARE),slow,(slow or seeded)) and not hil and not figures and not rtl' $(ARGS)

lint: $(STAMP) ## Format, lint and import rules
	$(PY) -m ruff format --check --quiet
	$(PY) -m ruff check --quiet
	.venv/bin/lint-imports --no-logo

types: $(STAMP) ## mypy --strict over everything
	$(PY) -m mypy

unit: $(STAMP) ## The fast tests alone, on all cores; what each costs: make unit ARGS='--cpu-report FILE'
	$(PYTEST) -m 'not slow and not hil and not figures and not rtl' $(ARGS)

torch: $(STAMP) ## Make .venv-torch, for the tests of inaproto.torch, which are skipped without it; where torch is: make torch ARGS='--index-url URL'
	$(PY) deploy/torch_environment.py $(ARGS)

coverage: $(STAMP) ## The tests with branch coverage of wire and core
	$(PY) -m coverage run -m pytest $(ARGS)
	$(PY) -m coverage report

mutation: $(STAMP) ## Mutation testing of wire and core, some 20 min; what changed: make mutation ARGS=--changed
	$(PY) tests/mutation/run.py $(ARGS)

fuzz: $(STAMP) ## Fuzz every decoder, a minute each; options: make fuzz ARGS='--seconds 5'
	$(PY) tests/fuzz/run.py $(ARGS)

hil: $(STAMP) ## Kernel RoCE hosts (Soft-RoCE) in a virtual machine against switch and NIC, some 15 min; no root; an eighth of the dear cases: make hil SHARE=1
	$(if $(SHARE),,INAPROTO_ROTATION=all )$(PY) -m pytest -m hil $(or $(ARGS),tests/hil)

rtl: rtltools ## Judge the RTL by the software core, numpy, proofs, planted faults and hosts, and size it, some 40 min on two cores; needs g++; an eighth of the tests: make rtl SHARE=1
	.venv/bin/inaproto rtl check
	.venv/bin/inaproto rtl prove
	.venv/bin/inaproto rtl compare --campaigns $(if $(SHARE),25,200)
	$(if $(SHARE),,INAPROTO_ROTATION=all )$(PY) -m pytest --numprocesses 2 --dist worksteal -m 'rtl or not rtl' $(or $(ARGS),tests/rtl)
	$(if $(SHARE),,INAPROTO_ROTATION=all )$(PY) -m pytest -m rtl tests/paper tests/unit
	INAPROTO_ROTATION=all $(PY) -m pytest -m hil tests/hil/test_softroce_rtl.py
	.venv/bin/inaproto demo --accelerator rtl --epochs 1
	.venv/bin/inaproto rtl fit --family ecp5 --words 2 --no-place
	$(if $(SHARE),,.venv/bin/inaproto rtl fit --family ecp5 --small --blocks Accelerator)

rtltools: $(STAMP) ## Get the tools of the RTL into .venv: 300 MB
	@command -v g++ >/dev/null || { echo 'make rtl: g++ is missing (apt-get install g++)' >&2; exit 1; }
	$(PY) -m pip install --quiet --require-hashes --requirement requirements-rtl.lock

figures: $(STAMP) ## Every figure and table of MINA's, PARING's and MLNet's evaluations computed anew, some 15 min of CPU on all cores
	INAPROTO_ROTATION=all $(PY) -m pytest -m figures $(or $(ARGS),tests/figures)

bench: $(STAMP) ## Measure the accelerator core, then all-reduces through the daemons
	.venv/bin/inaproto bench accelerator
	.venv/bin/inaproto bench allreduce

soak: $(STAMP) ## 2000 simulated worlds under faults, report in soak-out; options: make soak ARGS='--seeds 100000'
	.venv/bin/inaproto soak --seeds 2000 --out soak-out --anew $(ARGS)

twins: $(STAMP) ## 2000 simulated worlds of each kind by compiled kernels and by numpy, same digests, some 2 h of CPU; options: make twins ARGS='--seeds 100'
	$(PY) -m tests.twins.run $(ARGS)

crashes: $(STAMP) ## Kill controllers 1000 times, leaders of a pair 200 times; options: make crashes ARGS='-k pair'
	INAPROTO_CRASHES=1000 $(PY) -m pytest tests/controller/test_controller_crashes.py $(ARGS)

dist: uv ## Wheel, sdist and, for each Python of a distribution, a .deb, all into dist; some: make dist ARGS='--python 3.12'
	$(PY) -m deploy.packages.build $(ARGS)

uv: $(STAMP)
	@$(PY) -m pip install --quiet uv || $(PYTHON) -m pip --python $(PY) install --quiet uv

PIN := .venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --only-binary :all: \
  --no-emit-index-url --no-emit-find-links --no-config --custom-compile-command 'make lock' --quiet

lock: uv ## Pin dependencies anew: of developers, of production (run), of make rtl, of Ray; newest of all: make lock ARGS=--upgrade
	$(PIN) --extra planning --extra pictures --extra postgresql --extra tracing --group dev --group build --output-file requirements.lock $(ARGS)
	$(PIN) --extra postgresql --extra tracing --constraints requirements.lock --output-file requirements-run.lock $(ARGS)
	$(PIN) --group rtl --constraints requirements.lock --output-file requirements-rtl.lock $(ARGS)
	$(PIN) --extra ray --extra planning --constraints requirements.lock --output-file requirements-ray.lock $(ARGS)

clean: ## Remove .venv and all caches
	rm -rf .venv .venv-torch .mutation .mypy_cache .import_linter_cache .hypothesis .coverage dist
	find . \( -name __pycache__ -o -name .ruff_cache \) -type d -prune -exec rm -rf {} +

C_SOURCES := $(wildcard inaproto/core/kernels/*.c adapters/inaproto_adapters/frames/*.c)

$(STAMP): requirements.lock pyproject.toml deploy/bootstrap.py deploy/kernels_build.py $(C_SOURCES)
	@$(PYTHON) deploy/bootstrap.py

# A stamp that came with a copied or moved tree, or whose Python is gone, counts for nothing.
ifneq ($(shell test -x $(PY) && grep -qxsF "tree $$(pwd -P)" $(STAMP) && echo made),made)
$(STAMP): FORCE
endif
