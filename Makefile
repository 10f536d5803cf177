# What a person does with this checkout. Every target sets up what it needs by itself (scripts/setup).
.DEFAULT_GOAL := help
PREFIX ?= /usr/local
export PREFIX DESTDIR
.PHONY: help demo test test-verbs test-launch test-vllm test-nixl kill-test stranger-test gpu-test build check install clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo:  ## set up, then five collectives, every byte checked: on GPUs beside NCCL, or between CPUs over three links
	@scripts/demo

test:  ## set up, then every test: C++, Python, sanitizers, fuzzers, layers
	@scripts/setup --check
	@scripts/test

test-verbs:  ## set up, then tests on real libibverbs: soft-RoCE in virtual machines, no RDMA NIC needed
	@scripts/setup --tests
	@scripts/test_verbs

kill-test:  ## set up, then 500 jobs a lane that lose ranks to SIGKILL: nobody hangs, nothing stays; about 15 minutes
	@scripts/setup
	@scripts/kill_ranks

stranger-test:  ## as root: set up, then a minute of another user at every door of jobs that run and train
	@scripts/setup --tests
	@.venv/bin/python scripts/stranger_test.py

test-launch:  ## set up, then torchrun, Slurm, mpirun, Ray and JobSet's command over two hosts of this machine (root)
	@scripts/setup --check
	@scripts/test_launch

test-vllm:  ## real vLLM on the CPU (4 GB into build/vllm): prefill in one process, decode in another, tokens equal
	@scripts/setup
	@scripts/test_vllm

test-nixl:  ## braid as a backend of NIXL, in NIXL's own wheel (200 MB into build/nixl): every byte, every notification
	@scripts/setup
	@scripts/test_nixl

gpu-test:  ## on a machine with GPUs (python3 with torch and nanobind): build, every GPU test
	@scripts/gpu_test

build:  ## build into build/release and install into .venv
	@scripts/setup

check:  ## format, lint, types, layers
	@scripts/setup --check
	@scripts/check

install:  ## build for C and C++ programs and install to PREFIX (/usr/local), below DESTDIR: docs/install.md
	@scripts/install

clean:  ## remove everything that was built
	rm -rf build dist .venv .mypy_cache .pytest_cache .ruff_cache
