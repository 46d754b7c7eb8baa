# The commands of the repository. `make` lists them; cmake and pytest can be used directly as well (CONTRIBUTING.md).
SHELL := /bin/bash
BUILD := build/release
PYTHON := .venv/bin/python
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

# Inside some virtual machines a processor announces AMX and then dies of it (SIGILL): oneDNN is kept off it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# What setup could not have from the system (a newer cmake) is in .venv/bin.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# The Python package straight from the tree, with the library just built.
RUN := LIBPOM_LIBRARY=$(CURDIR)/$(BUILD)/libpom.so PYTHONPATH=python $(PYTHON)
CXX_FILES = find pom cli tests bench python -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'

.PHONY: help setup library program build kernels demo serve compare test test-all serve-test container-test check-headers gpu-test bench format format-check asan serve-sanitize install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: system packages, and .venv with the pinned torch
	@./setup

library: setup ## libpom.so, into build/release
	@cmake --preset release --log-level=NOTICE
	@cmake --build $(BUILD) --parallel $(JOBS) --target pom

program: library ## the program pom, into build/release
	@cmake --build $(BUILD) --parallel $(JOBS) --target pom_cli

build: library ## libpom.so, the program and the C++ tests
	@cmake --build $(BUILD) --parallel $(JOBS)

kernels: setup ## all CUDA kernels for sm_80 and sm_90a, compiled by nvcc; needs no GPU
	@command -v "$${CUDACXX:-nvcc}" >/dev/null || { echo "make kernels: nvcc was not found: install the CUDA toolkit, or set CUDACXX=/path/to/nvcc" >&2; exit 1; }
	@cmake --preset kernels --log-level=NOTICE
	@cmake --build --preset kernels --parallel $(JOBS)

# What the demo's stream is told, and when.
CLIP := --prompt "a red circle drifts to the right over blue" --prompt-at "24:a pink heart drifts to the left over black" \
        --prompt-at "48:an orange moon drifts down over blue" --frames 72 --stream --seed 5

demo: program ## a sheet of images and a clip from the models in assets/
	@mkdir -p out
	@$(BUILD)/pom sample --model assets/shapes64 --class all --count 3 --seed 7 --grid -y -o out/demo.png
	@$(BUILD)/pom sample --model assets/sprites32 $(CLIP) -y -o out/demo.mp4
	@$(BUILD)/pom sample --model assets/sprites32 $(CLIP) -y -o out/demo.gif
	@echo "make demo: open out/demo.png and out/demo.mp4; \`make serve\` opens a page to make your own" >&2

serve: program ## a page with the models in assets/, at http://127.0.0.1:8000: images, clips and a stream; until Ctrl-C
	@$(BUILD)/pom serve

compare: library ## the operator against attention on growing sequences
	@$(RUN) bench/compare.py

test: setup ## everything CI runs; ends with the totals
	@$(PYTHON) tests/run.py

test-all: setup ## plus the long tests: fuzzing for minutes, every file compiled alone, `pip install .`, the container
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-300} LIBPOM_TEST_PIP=1 POM_KILLS=$${POM_KILLS:-60} $(PYTHON) tests/run.py --all

# For instance ROWS="slow cuts" SOAK=3600.
serve-test: program ## what the server is held to, with all its numbers and controls, and a report; ROWS="row ..." SOAK=seconds
	@$(PYTHON) tests/serve.py $(ROWS) $(if $(SOAK),--soak $(SOAK))

container-test: setup ## the container of pom serve, built and tried; needs root, podman, runc and mmdebstrap
	@$(PYTHON) tests/run.py container

# For instance TORCH="path/to/torch-2.11/torch path/to/torch-2.13/torch", packages of the oldest and the newest.
check-headers: setup ## whether every header and source compiles alone, with the torch of .venv or those of TORCH="folder ..."
	@$(PYTHON) tests/headers.py $(foreach torch,$(TORCH),--torch $(torch))

gpu-test: ## on a machine with a CUDA GPU: its tests and benchmarks, with a report; ONLY=part,part FULL=1
	@$$([ -x $(PYTHON) ] && echo $(PYTHON) || echo python3) tests/gpu.py $(if $(ONLY),--only $(ONLY))

bench: build ## the layer, its memory, sampling and training against PyTorch eager and torch.compile
	@$(RUN) bench/layer.py
	@$(RUN) bench/memory.py
	@$(RUN) bench/sample.py
	@$(RUN) bench/program.py
	@$(RUN) bench/train.py

format: setup ## format the C++, CUDA and Python sources
	@$(CXX_FILES) 2>/dev/null | xargs clang-format -i
	@ruff check --quiet --fix .
	@ruff format --quiet .

format-check: setup ## whether they are formatted
	@$(PYTHON) tests/run.py format ruff

asan: setup ## the C++ tests under the address and undefined-behaviour sanitizers
	@$(PYTHON) tests/run.py --preset asan build c++

serve-sanitize: setup ## the C++ tests of the server, without torch, under the address, undefined-behaviour and thread sanitizers
	@$(PYTHON) tests/sanitize.py

install: program ## the program, the library, its headers and find_package(pom), into PREFIX=/usr/local
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what was built; .venv stays
	rm -rf build out
