# Everything happens in .venv; nothing is installed outside it.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CONSTRAINTS ?= constraints.txt # the versions that the tests passed with; empty: the newest
PIP_ARGS ?= -qq --no-compile # modules are compiled when they are first imported: most of them never are
WARM := torch._dynamo,torch.distributed,torch.utils.data scipy.optimize,matplotlib.pyplot,fastapi,moto.server ray # by one, not by all at once
TEST_ARGS ?= -n 4 --dist worksteal # for two cores: a test that waits for a process holds none up
HOURS ?= 8
SPEEDUP ?= 16
SEED ?= 1
SIZE ?= part

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLBACKEND := Agg
export PYTHONDONTWRITEBYTECODE := # where it is set, each of the hundreds of processes of the tests compiles all that it imports
test: export TEST_SIZE := $(SIZE)
test: export TEST_SEED := $(SEED)
test bench claims mutants adoption scenarios soak: export OMP_NUM_THREADS := 1
test bench claims mutants adoption scenarios soak: export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: setup demo test test-all pytest check bench loader claims mutants docs screenshots figures wheels adoption faults scenarios soak clean help

setup: $(READY) ## make .venv and install Sublet into it with all that development needs
	@echo "Ready: try 'make demo', or $(BIN)/sublet --help"

demo: $(READY) ## three real training jobs on a spot market that takes nodes away; the report goes to out/demo
	$(BIN)/sublet demo --report out/demo

test: $(READY) ## check, and beside it run the tests, of what takes long a sample: some five minutes (TEST_ARGS="tests/unit -k money" for some; SEED=2: another sample)
	@$(MAKE) --no-print-directory -j2 check pytest # types take a minute of one core

test-all: $(READY) ## check, and every test: up to an hour, before every release (SIZE=full: all examples of properties, too)
	@$(MAKE) --no-print-directory test SIZE=$(if $(filter full,$(SIZE)),full,every)

pytest: $(READY)
	$(BIN)/python -m pytest --again $(TEST_ARGS)

check: $(READY) ## lint, formatting, types, layers, what only tests use
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.unused

bench: $(READY) ## measure speed
	$(BIN)/python -m benchmarks.run

loader: $(READY) ## what a session costs where a DataLoader's workers load, beside DDP and torchdata, which it installs: some ten minutes
	$(BIN)/python -m pip install $(PIP_ARGS) $(addprefix -c ,$(CONSTRAINTS)) 'torchdata>=0.11'
	$(BIN)/python -m benchmarks.loader

claims: $(READY) ## run the studies behind the README's tables, and write them (QUICK=1: minutes; ONLY=boa,fleet; RENDER=1: only write)
	$(BIN)/python -m sublet_lab.studies.claims $(if $(QUICK),--quick) $(if $(RENDER),--render) $(if $(ONLY),--only $(ONLY))

mutants: $(READY) ## plant the faults of a list, then COUNT=300 drawn by SEED=1, and say which no test sees; out/mutants.json
	$(BIN)/python -m tests.mutants --named
	$(BIN)/python -m tests.mutants --count $(or $(COUNT),300) --seed $(SEED) --json out/mutants.json

faults: $(READY) ## live SEEDS=100000 lives of controller and agents with faults, from seed FROM=0; counts go to out/faults.jsonl
	$(BIN)/python -m sublet_lab.world --seeds $(or $(SEEDS),100000) --from $(or $(FROM),0) --count out/faults.jsonl

scenarios: $(READY) ## all forty fault scenarios: a table, and out/scenarios.json (ONLY="9 14" for some)
	$(BIN)/python -m tests.scenarios $(ONLY)

adoption: $(READY) ## scripts as people write them, before and after, under strikes; loops of the guide, resized: some ten minutes
	$(BIN)/python -m pip install $(PIP_ARGS) $(addprefix -c ,$(CONSTRAINTS)) -e '.[integrations]'
	TEST_SIZE=full $(BIN)/python -m pytest tests/adoption tests/unit/integrations

soak: $(READY) ## small jobs under random faults for HOURS=8 of the cloud (SPEEDUP=16: half an hour), SEED=1; out/soak.json
	$(BIN)/python -m tests.soak --hours $(HOURS) --speedup $(SPEEDUP) --seed $(SEED) --json out/soak.json

docs: $(READY) ## the documentation as a site that needs no internet, with search and the Python reference: out/site
	$(PYTHON) -m venv --clear out/docs-env # apart: what builds the site would change what the tests are run with
	out/docs-env/bin/python -m pip install $(PIP_ARGS) 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.26'
	$(BIN)/python -m tests.llms
	NO_MKDOCS_2_WARNING=1 out/docs-env/bin/mkdocs build -q
	@echo "open out/site/index.html"

screenshots: $(READY) ## pictures of every view of the page, into docs/pictures (needs Chromium: apt install chromium)
	$(BIN)/python -m tests.screenshots

wheels: $(READY) ## build both wheels, install each extra alone in an environment of its own, and try it (ONLY="train ssh" for some): half an hour, 12 GB
	$(BIN)/python -m tests.wheels $(ONLY)

figures: $(READY) ## count long files, large classes, circles of imports, ...; TREE=path puts another tree beside this one
	$(BIN)/python -m tests.figures $(TREE)

clean: ## remove .venv, caches and reports
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist out
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

# The first Python of at least 3.11 among $(PYTHON) and the versioned names makes the environment. An environment that
# was left half made is made again; a sound one is kept, so that a change of pyproject.toml costs only what changed.
$(READY): pyproject.toml lab/pyproject.toml $(CONSTRAINTS)
	@set -e; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=; \
	  for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "Sublet needs Python 3.11 or later, and '$(PYTHON)' is not. Install one, or: make setup PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  if ! $$found -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    version=$$($$found -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "$$found cannot make virtual environments (no ensurepip). On Debian or Ubuntu: apt install python$$version-venv" >&2; \
	    exit 1; \
	  fi; \
	  $$found -m venv --clear .venv; \
	fi; \
	echo "Installing Sublet and its development tools into .venv (PyTorch among them: some minutes the first time)"; \
	$(BIN)/python -m pip install $(PIP_ARGS) $(addprefix -c ,$(CONSTRAINTS)) -e '.[dev]' -e lab; \
	for modules in $(WARM); do $(BIN)/python -c "import $$modules" 2>/dev/null || true; done; \
	$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true; \
	touch $@
