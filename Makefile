# Every target sets itself up: Python 3.11+ with venv and pip, and make, are all that a machine needs.
# `make GPU=1 test` takes the GPU build of vLLM (the extras of pyproject.toml) instead of the CPU lock.

PYTHON ?= python3
UV_VERSION := 0.13.8
ARGS ?=
ROUNDS ?= 5
TEOLA_CHAOS ?= full
# The last ones take no arguments of the others.
BENCH ?= single_query langchain_and_langgraph llamaindex $(if $(ARGS),,load overhead runtime_overhead)
GPU ?=
RUNTIME ?=
SAMPLE ?= -p tests.support.llamaindex_sample

BIN := .venv/bin
UV := $(BIN)/uv
FLAVOUR := $(if $(GPU),gpu,cpu)
READY := .venv/.ready-$(FLAVOUR)
# A layer .venv-NAME has what requirements/NAME.txt lists, before what .venv has, which stays as locked.
LLAMAINDEX := llamaindex-0.12 llamaindex-0.14
LAYERS := conformance $(LLAMAINDEX)
# All but vllm, whose CPU build stands in cpu.in.
LOCK_EXTRAS := langchain langgraph llamaindex chroma embeddings ray serve otel dev

# llama-index ships data files that its loader refuses when they are hard links into uv's cache.
export UV_LINK_MODE := copy
# On a few busy cores a second thread per engine spins and makes a decode step ten times slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Nothing is downloaded at run time, nothing is reported to anybody.
export HF_HUB_OFFLINE ?= 1
export ANONYMIZED_TELEMETRY ?= False
export RAY_USAGE_STATS_ENABLED ?= 0
export VLLM_NO_USAGE_STATS ?= 1
export DO_NOT_TRACK ?= 1
# Otherwise a process started by `uv run` makes Ray start each worker through uv too.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV ?= 0
ifeq ($(GPU),)
# GiB; without it a CPU engine claims nine tenths of the memory, and refuses to start when others use some.
export VLLM_CPU_KVCACHE_SPACE ?= 1
# A forked engine inherits what is imported and starts in half the time. Where torch has computed on several threads it
# would hang, so only with one; nothing else here runs threads that import or compute when an engine starts.
ifeq ($(OMP_NUM_THREADS),1)
export VLLM_WORKER_MULTIPROC_METHOD ?= fork
endif
endif

.PHONY: help demo test check bench bench-papers chaos soak llamaindex conformance mutants lock install clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "  ARGS='...' is handed on to the command; GPU=1 uses the GPU build of vLLM."

demo: $(READY)  ## answer one question with the plain and the optimized pipeline, side by side (RUNTIME=ray)
	$(BIN)/teola demo $(if $(RUNTIME),--runtime $(RUNTIME)) $(ARGS)

test: $(READY)  ## run the tests (one folder or file: ARGS=tests/passes)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)  ## lint, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest -q tests/project/test_layers.py

bench: $(READY)  ## compare latencies side by side in one run (one file: BENCH=single_query ARGS='--engines real')
	for name in $(BENCH); do $(BIN)/python benchmarks/$$name.py $(ARGS) || exit 1; done

bench-papers: $(READY)  ## simulate the papers' figures, into docs/papers.md and build/papers.html (one: ARGS=teola-c)
	mkdir -p build
	$(if $(ARGS),,$(BIN)/python -m pytest -m papers tests/papers)
	$(BIN)/python benchmarks/paper_figures.py $(or $(ARGS),--markdown docs/papers.md --html build/papers.html)

chaos: $(READY)  ## run engines and servers under fire, for minutes (TEOLA_CHAOS=small: for seconds)
	$(if $(filter full,$(TEOLA_CHAOS)),TEOLA_TEST_SIMULATIONS=2000 $(BIN)/python -m pytest tests/runtime/hosts/test_simulated_runtime.py)
	TEOLA_CHAOS=$(TEOLA_CHAOS) $(BIN)/python -m pytest -s tests/chaos $(ARGS)

soak: $(READY)  ## run the tests ROUNDS times, each in another order
	$(BIN)/python -m pytest tests/adapters/langchain/test_langchain_differential.py --garbage-to-host
	$(BIN)/python -m pytest tests/adapters/langchain/test_langchain_differential.py --garbage-under-locks
	for round in $$(seq $(ROUNDS)); do $(BIN)/python -m pytest $(ARGS) || exit 1; done

llamaindex: $(LLAMAINDEX:%=.venv-%/.ready)  ## run a sample of the tests of LlamaIndex on older releases of it (all: SAMPLE=)
	@# Older releases would download the word lists that they bring along; 0.12 looks below the folder it is given.
	for layer in $(LLAMAINDEX); do \
	  core=$$(echo $(CURDIR)/.venv-$$layer/lib/python*/site-packages/llama_index/core); \
	  export NLTK_DATA=$$core$$([ $$layer = llamaindex-0.12 ] || echo /_static/nltk_cache); \
	  .venv-$$layer/bin/python -m pytest $(SAMPLE) tests/adapters/llamaindex/test_llamaindex_*.py $(ARGS) || exit 1; \
	done

conformance: .venv-conformance/.ready  ## run the frameworks' own tests through optimize (a part: ARGS=core or ARGS=core:exec)
	.venv-conformance/bin/python tests/conformance/run.py $(ARGS)

mutants: $(READY)  ## plant faults one at a time and count those the tests notice (layers: ARGS=lane; ARGS='--sample 20')
	$(BIN)/python -m tests.mutants.run $(ARGS)

install: $(READY)  ## make .venv and stop there

lock: $(UV)  ## resolve requirements/*.txt again (ARGS=--upgrade for newer versions)
	bash requirements/uv.sh $(UV) pip compile pyproject.toml requirements/cpu.in $(LOCK_EXTRAS:%=--extra=%) \
	  --overrides requirements/overrides.txt --excludes requirements/excludes.txt --generate-hashes \
	  --python-version 3.11 --no-header --quiet $(ARGS) -o requirements/cpu.txt
	@# Without the local part and the hashes, the line takes every build of this torch: which one it is depends on the
	@# machine (uv.sh), and only the builds that this one finds could be listed. All other files are checked.
	sed '/^torch==/,/^ *#/{s/^\(torch==[0-9.]*\).*/\1/;/--hash=/d}' requirements/cpu.txt > .venv/cpu.txt && \
	  mv .venv/cpu.txt requirements/cpu.txt
	for layer in $(LAYERS); do bash requirements/lock_layer.sh $(UV) $$layer $(ARGS) || exit 1; done

clean:  ## remove everything that a target made
	rm -rf .venv $(LAYERS:%=.venv-%) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "teola-plugin needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready-cpu: $(UV) requirements/cpu.txt requirements/uv.sh pyproject.toml
	bash requirements/uv.sh $(UV) pip sync --quiet requirements/cpu.txt
	$(UV) pip install --quiet --no-deps -e .
	@rm -f .venv/.ready-gpu && touch $@

.venv/.ready-gpu: $(UV) pyproject.toml
	$(UV) pip install --quiet --torch-backend=auto -e '.[all,dev]'
	@rm -f .venv/.ready-cpu && touch $@

.venv-%/.ready: requirements/%.txt $(READY)
	$(BIN)/python -m venv --without-pip $(@D)
	@# Unlike a plain path, it reads the .pth files there, such as that of this package.
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	  > $$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/below.pth
	bash requirements/uv.sh $(UV) pip sync --quiet --python $(@D)/bin/python $<
	@touch $@
