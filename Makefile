# Everything runs in .venv, made on first use. PYTHON=python3.12 chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check check-gpu lock format docs package reproduce costs bench bench-accuracy picture torture clean

help: ## What one can do here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(BIN)/pip:
	$(PYTHON) -m venv .venv

.venv/.run: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

# Tests and checks run with the versions of constraints.txt, so that the same commit gives the same result tomorrow.
# pip would compile modules one by one.
.venv/.test: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[test]'
	-$(BIN)/python -m compileall -q -j 0 .venv/lib dpfc_cli
	@touch $@

demo: .venv/.run ## Extract, train (ε = 1, ε = 8, non-private), evaluate and budget on the embedded digits
	rm -rf demo && mkdir demo
	cd demo && ../$(BIN)/dpfc extract --model scattering --dataset digits
	cd demo && ../$(BIN)/dpfc train --epsilon 1 --out heads/eps1.safetensors
	cd demo && ../$(BIN)/dpfc train --epsilon 8 --out heads/eps8.safetensors
	cd demo && ../$(BIN)/dpfc train --non-private --out heads/digits.nonprivate.safetensors
	cd demo && for head in heads/*.safetensors; do ../$(BIN)/dpfc evaluate $$head || exit; done
	cd demo && ../$(BIN)/dpfc budget

# What JAX compiles is kept for the next run. Kernels and core are compiled as users do it; for the other rooms a third
# of the time is enough (JAX 0.11 does not know the second flag). Temporary files lie in memory if possible: ledgers and
# heads are synced to disk.
TESTS = $(BIN)/python -m pytest -q -n auto --dist worksteal
QUICKLY = XLA_FLAGS='--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false'
BITS = tests/kernels tests/privacy

test: .venv/.test ## Run the tests, on all cores
	@export TMPDIR=$$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) && trap 'rm -rf "$$TMPDIR"' EXIT && set -x && \
	export JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.venv/.compiled JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 && \
	export PYTHONDONTWRITEBYTECODE= && $(TESTS) $(BITS) && $(QUICKLY) $(TESTS) $(BITS:%=--ignore=%)

check: .venv/.test ## Lint, types and the import contract
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

.venv/.cuda: .venv/.test
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,cuda]'
	@touch $@

# The tests compare its sums with those of the processor. JAX stops if there is no GPU that it can use. By default each
# process would take most of its memory.
check-gpu: .venv/.cuda ## On a machine with an NVIDIA GPU: what a GPU computes, tested there; seconds there and on the processor
	JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false $(TESTS) $(BITS) tests/methods tests/backbones
	JAX_PLATFORMS=cuda $(BIN)/python -m bench.costs
	JAX_PLATFORMS=cpu $(BIN)/python -m bench.costs

# Run it with the oldest Python that dpfc supports: the versions for it also exist for later ones.
lock: ## Write constraints.txt anew, with the newest versions that fit (PYTHON=python3.11); then run the tests
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && set -x && $(PYTHON) -m venv $$new && \
	$$new/bin/pip install --quiet --disable-pip-version-check -e '.[test]' && \
	{ echo '# The versions that the tests run with, all of them. Written by make lock.'; \
	  $$new/bin/pip freeze --exclude-editable; } > $$new/constraints.txt && cp $$new/constraints.txt constraints.txt

format: .venv/.test ## Format the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.venv/.docs: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs ## The documentation as a site in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Read build/site/index.html; with search: python3 -m http.server -d build/site"

package: ## Build the wheel and the source archive into dist/, and try the wheel alone (PYTHON=python3.13)
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && $(PYTHON) -m venv $$new && \
	$$new/bin/pip install --quiet --disable-pip-version-check build && $$new/bin/python scripts/package.py

.venv/.bench: .venv/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[plot]'
	@touch $@

reproduce: ## The paper's tables on FEATURES="SET…", into bench-results (hours; goes on where it stopped; WORKERS=2)
	@$(MAKE) --no-print-directory .venv/.bench
	$(BIN)/python -m bench.reproduction $(or $(FEATURES),$(error Name feature sets: make reproduce FEATURES="features/…")) --workers $(or $(WORKERS),2)

costs: .venv/.run ## Seconds and memory of every method on made-up features (SHAPE=50000x768x100)
	$(BIN)/python -m bench.costs --shape $(or $(SHAPE),50000x768x100)

# The other tools have an environment of their own.
PEERS ?= .venv-bench

$(PEERS)/.made: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -e . torch torchvision timm opacus scikit-learn
	@touch $@

bench: $(PEERS)/.made ## dpfc beside other tools, for bench/tables/benchmarks.md, on FEATURES="SET…" (half an hour; goes on where it stopped)
	$(PEERS)/bin/python -m bench.benchmarks $(FEATURES)

bench-accuracy: .venv/.run ## The default beside the paper's methods on synthetic sets and FEATURES="SET…" (hours; resumable)
	$(BIN)/python -m bench.accuracy $(FEATURES) --synthetic bench-results/synthetic --workers $(or $(WORKERS),2)

picture: .venv/.bench ## The picture of the README, from kept results (FEATURES=FOLDER with the two sets, for those that lack)
	$(BIN)/python -m bench.picture $(FEATURES)

.venv/.torture: .venv/.test
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[torture]'
	@touch $@

# Flower and NVFlare have versions of their own of what dpfc uses.
CARRIERS := .venv/flower/.made .venv/nvflare/.made
$(CARRIERS): .venv/%/.made: examples/hospitals/relay/pyproject.toml
	$(PYTHON) -m venv $(@D) && $(@D)/bin/pip install --quiet --disable-pip-version-check './$(<D)[$*]'
	@touch $@

torture: .venv/.torture $(CARRIERS) ## Equal trainings, failing system calls, damaged files, killed sites, mutants (hours; goes on where it stopped; WORKERS=2)
	@broke=0; for campaign in twins faults; do \
	$(BIN)/python -m tests.torture.$$campaign --workers $(or $(WORKERS),2) || broke=1; done; \
	$(BIN)/python -m pytest -q -n $(or $(WORKERS),2) --hypothesis-profile=torture -k "damaged_file or whatever_stands or hostile_value" tests/torture tests || broke=1; \
	$(BIN)/python -m pytest -q -n $(or $(WORKERS),2) -m long || broke=1; \
	$(BIN)/python -m pytest -q tests/backbones -k real_ || broke=1; \
	$(BIN)/python -m tests.torture.sites --kills 100 || broke=1; \
	$(BIN)/python -m tests.torture.engine --kills 200 || broke=1; \
	for carrier in flower nvflare; do \
	$(BIN)/python -m tests.torture.sites --kills 10 --over $$carrier --programs .venv/$$carrier/bin || broke=1; done; \
	$(BIN)/mutmut run --max-children $(or $(WORKERS),2); $(BIN)/mutmut results; exit $$broke

clean: ## Remove what make made
	rm -rf .venv .venv-bench demo build dist mutants
