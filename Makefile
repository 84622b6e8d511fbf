# The few commands of the project. `make help` lists them; everything is made in build/ and .venv/.
# Arguments for a program go in ARGS, as in `make demo ARGS="--fault spike --seed 3"`.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)

JOBS ?= $(shell nproc)
C_FILES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h')
PACKAGE_SOURCES = $(shell find src include python cmake web -type f) CMakeLists.txt pyproject.toml
CTEST = ctest --output-on-failure --no-tests=error --timeout 300 --test-dir

# $(call build,NAME,OPTIONS): configure and build in build/NAME.
build = cmake --log-level=WARNING -S . -B build/$(1) -G Ninja $(2) && ninja -C build/$(1) -j $(JOBS) --quiet

GCC = -DCMAKE_C_COMPILER=gcc
CLANG = -DCMAKE_C_COMPILER=clang
ASAN = $(GCC) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 -DTP_SANITIZE=address,undefined
TSAN = $(GCC) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 -DTP_SANITIZE=thread \
       -DTP_BUILD_PYTHON=OFF -DTP_BUILD_TOOLS=OFF

.PHONY: help
help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: install ## train a small GPT, break it on purpose, and see what the monitor says
	python examples/demo/train_gpt.py $(ARGS)

.PHONY: test
test: bootstrap ## everything that CI checks, what fails soonest first (about five minutes)
	$(MAKE) lint
	$(MAKE) test-gcc
	$(MAKE) test-clang
	$(MAKE) test-asan
	$(MAKE) test-tsan
	$(MAKE) test-aarch64
	$(MAKE) test-python

.PHONY: check
check: lint test-gcc install ## what to run before a commit (under two minutes)
	python -m pytest -q -m "not slow" tests/python $(ARGS)

.PHONY: build
build: bootstrap ## compile the library, the command and the C tests in build/release
	$(call build,release,$(GCC))

.PHONY: install
install: build/install.stamp ## compile the Python package and install it into .venv

.PHONY: lint
lint: bootstrap ## include arrows, format, ruff, mypy, public headers
	python scripts/check_arrows.py
	clang-format --dry-run --Werror $(C_FILES)
	ruff check --quiet .
	ruff format --quiet --check .
	mypy
	tests/headers/run.sh

.PHONY: tidy
tidy: build ## clang-tidy over the C sources
	run-clang-tidy -quiet -p build/release -j $(JOBS) '/(src|tools|python)/.*\.c$$'

.PHONY: test-gcc
test-gcc: build ## the C tests, built with gcc
	$(CTEST) build/release

.PHONY: test-clang
test-clang: bootstrap ## the C tests, built with clang
	$(call build,clang,$(CLANG))
	$(CTEST) build/clang

.PHONY: test-asan
test-asan: bootstrap ## C tests, fuzz targets and extension tests under ASan and UBSan
	$(call build,asan,$(ASAN) -DTP_BUILD_FUZZ=ON)
	TP_FUZZ_SECONDS=30 $(CTEST) build/asan
	scripts/test_extension_asan.sh build/asan $(ARGS)

.PHONY: test-tsan
test-tsan: bootstrap ## the C tests of the rooms with threads, under TSan
	$(call build,tsan,$(TSAN))
	scripts/without_aslr.sh $(CTEST) build/tsan -R '^test_(base|record|journal|monitor)_|^test_stats_threads$$'

.PHONY: test-aarch64
test-aarch64: bootstrap ## the statistics with NEON, cross-compiled, under qemu
	tests/aarch64/run.sh

.PHONY: test-python
test-python: build install ## the Python tests
	python -m pytest tests/python $(ARGS)

.PHONY: test-oldest
test-oldest: build ## the hooks with the oldest PyTorch that they support (downloads 3 GB into build/)
	scripts/test_oldest.sh build/release $(ARGS)

.PHONY: bench
bench: build install ## measure the statistics and the cost of monitoring
	python bench/stats.py $(ARGS)
	python bench/overhead.py $(ARGS)
	python bench/hooks.py
	python bench/collectives.py
	python bench/steady.py
	build/release/tests/unit/bench_rules
	python bench/diagnosis.py
	python bench/sinks.py build/release --long 1000

.PHONY: soak
soak: build install ## the long versions of the random tests, and four minutes of fuzzing a target
	TP_SOAK=1 $(CTEST) build/release
	TP_SOAK=1 python -m pytest tests/python $(ARGS)
	$(call build,asan,$(ASAN) -DTP_BUILD_FUZZ=ON)
	TP_FUZZ_RUNS=100000 ctest --output-on-failure --no-tests=error --test-dir build/asan
	scripts/fuzz.sh build/asan 240

.PHONY: format
format: bootstrap ## format C and Python
	clang-format -i $(C_FILES)
	ruff check --quiet --fix .
	ruff format --quiet .

.PHONY: clean
clean: ## remove what was built; .venv stays
	rm -rf build dist

.PHONY: bootstrap
bootstrap: ## install the Debian packages and make .venv, if they are missing
	@scripts/bootstrap.sh

# Building takes place in build/<wheel tag>, which is kept, so that only what changed is compiled.
build/install.stamp: $(PACKAGE_SOURCES) | bootstrap
	@mkdir -p build
	python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	    --force-reinstall .
	@touch $@
