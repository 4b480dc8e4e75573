# make reproduce · tables · test · lint · report · docs · bench · clean; `make` alone explains them.

PYTHON ?= python3
VENV ?= .venv
DEVICE ?= cpu-onnxruntime
PROFILE ?= quick
OPTIONS ?=
WORKERS ?= $(shell nproc)
PLANS ?=
SHIPPED := cpu-onednn cpu-onnxruntime cpu-openvino

# Paths reach the shell through its environment: a folder may have any name. (`abspath` takes words apart.)
export VENV_PATH := $(if $(filter /%,$(firstword $(VENV))),$(VENV),$(CURDIR)/$(VENV))
export PATH := $(VENV_PATH)/bin:$(PATH)
export PYTHONPATH := $(CURDIR)/workflow
# Files are UTF-8 in any locale; everything here is about this workspace.
export PYTHONUTF8 := 1
unexport EDGEPLAN_WORKSPACE
# Where no bytecode is kept each of the many processes compiles all modules again, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
# `dvc exp run` makes git commits of its own (refs/exps); a fresh machine may have no identity for them yet.
export GIT_AUTHOR_NAME ?= $(or $(shell git config user.name 2>/dev/null),edgeplan)
export GIT_AUTHOR_EMAIL ?= $(or $(shell git config user.email 2>/dev/null),edgeplan@localhost)
export GIT_COMMITTER_NAME ?= $(GIT_AUTHOR_NAME)
export GIT_COMMITTER_EMAIL ?= $(GIT_AUTHOR_EMAIL)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help environment dev-environment lock reproduce tables test test-committed test-all test-isa test-sanitised test-slow coverage lint report docs results-page operators-page schema bench distil relock wire native \
	clean place repository

help: ## show this text
	@echo "usage: make TARGET [DEVICE=$(DEVICE)] [PROFILE=$(PROFILE)] [OPTIONS='-S NAME=VALUE ...'] [PYTHON=$(PYTHON)] [VENV=$(VENV)]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 20

reproduce: repository environment wire ## measure, train and evaluate DEVICE with the values of config/profiles/PROFILE.yaml
	@for file in "config/devices/$(DEVICE).yaml" "config/profiles/$(PROFILE).yaml"; do test -f "$$file" || { \
		echo "error: there is no $$file" >&2; echo "  next:  ls '$${file%/*}'" >&2; exit 1; }; done
	@EDGEPLAN_STARTED_BY=$$PPID python workflow/scripts/reproduce.py "$(DEVICE)" \
		dvc exp run $$(python -m edgeplan.chapters.profiles "config/profiles/$(PROFILE).yaml") -S 'devices=[$(DEVICE)]' $(OPTIONS)

# Predictors that DVC has, here or in its cache, are not trained again: training takes most of the time and gives the same.
tables: export EDGEPLAN_STORED_ROWS_ONLY = 1
tables: repository environment wire ## rebuild the tables of all devices in params.yaml from the shipped rows; measures nothing
	dvc repro
	dvc repro --force --single-item $$(python -m edgeplan.chapters.registry) report

# Lanes of tests (tests/conftest.py): those of each day; `make lint` has the texts, `make test-slow` the pipeline.
PYTEST = python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal
DAY = fast or numerics or processes
MORE = long or texts or committed

test: dev-environment ## finish the set-up and run the tests on WORKERS cores (minutes; WORKERS=0: one after the other)
	$(PYTEST) -m "$(DAY)"

test-committed: dev-environment ## run the tests of what is in git: rows, results, shipped predictors; in a clone that nothing was run in
	$(PYTEST) -m committed

test-all: dev-environment ## every test, with many examples and each instruction set, before a release (hours)
	HYPOTHESIS_PROFILE=many $(PYTEST) -m "$(DAY) or $(MORE)"
	$(MAKE) test-isa test-sanitised test-slow

coverage: dev-environment ## lines of the package that the lanes of make test reach; LANES=all: those of test-all, but the slow ones
	@coverage erase
	$(if $(LANES),HYPOTHESIS_PROFILE=many) $(subst python,coverage run,$(PYTEST)) -m "$(DAY)$(if $(LANES), or $(MORE))"
	@coverage combine --quiet && coverage report --skip-covered

test-slow: dev-environment ## run the tests that take the tiny profile through the whole pipeline
	python -m pytest -m slow

test-isa: dev-environment ## run what computes with oneDNN or OpenCL with blocks of 8 and of 16, where the processor has the instructions
	set -e; for isa in AVX2 AVX512_CORE; do echo "instruction set $$isa"; ONEDNN_MAX_CPU_ISA=$$isa \
		$(PYTEST) -m "isa and not slow"; done

# g++ alone: its libraries are loaded before Python's. The usual library is there again afterwards.
test-sanitised: dev-environment ## run what calls the native library while errors of memory and undefined behaviour in it end the process
	python native/build.py --sanitise
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0:handle_segv=0 \
		python -m pytest -p no:xdist -m "fast or numerics" tests/runtime tests/planning tests/predictors \
		tests/graph/test_kernels.py tests/chapters/test_compiled_steps.py; \
		status=$$?; python native/build.py; exit $$status

lint: dev-environment ## ruff, mypy, snakefmt, snakemake --lint, import-linter, sizes against the last commit's, and the tests of texts
	python workflow/scripts/ratchet.py
	python native/build.py --check
	lint-imports --no-logo
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile workflow
	snakemake --lint
	$(PYTEST) -m "texts"

report: environment ## write results/report.html, the page of all devices and pairs, from the files in git; measures and trains nothing
	EDGEPLAN_STARTED_BY=$$PPID edgeplan stage report
	@echo "done: results/report.html"

docs: dev-environment ## build docs/ as a site in work/site; warnings are errors
	sphinx-build --quiet --fail-on-warning --keep-going -b html docs work/site
	@echo "done: work/site/index.html"

results-page: environment ## write the figures of README.md and docs/results.md again from results/
	python workflow/scripts/results_page.py

operators-page: environment ## write docs/operators.md from the operators that the package knows
	python workflow/scripts/code_documents.py operators

schema: environment ## write config/schema again: of params.yaml, of the lines between a host and a board, and of comparisons
	python workflow/scripts/code_documents.py schemas

bench: dev-environment ## can figures of this machine be trusted, and how fast are predictions, a run with nothing to do, and a plan beside a busy loop
	edgeplan device check $(DEVICE)
	python -m pytest -m slow -s tests/end_to_end/test_slow_stages.py::test_speed_of_predictions_is_recorded tests/runtime/test_shared_cores.py

relock: repository report ## note the present files in dvc.lock, once it is clear that no result changes by them
	python workflow/scripts/relock.py

wire: environment ## write dvc.yaml, workflow/rules and workflow/code.json from the stages that the chapters declare
	@python -m edgeplan.chapters.wiring

lock: dev-environment ## resolve the dependencies of pyproject.toml again
	python -m pip install --quiet --disable-pip-version-check uv
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra openvino --extra runtime --extra baselines --extra partition --extra pipeline pyproject.toml -o requirements.lock
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra openvino --extra runtime --extra baselines --extra partition --extra pipeline --extra dev --extra docs -c requirements.lock pyproject.toml -o requirements-dev.lock
	printf 'cuda-bindings>=13.0\nnvidia-cuda-nvrtc>=13.0\n' | uv pip compile --quiet --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate - -o requirements-cuda.lock
	echo ziglang | uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate - -o requirements-zig.lock
	echo pnnx | uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --no-deps - -o requirements-no-deps.lock

distil: repository environment wire ## write what the package ships of the devices in params.yaml, from their trained predictors
	dvc repro zoo $(SHIPPED:%=training@%)
	python workflow/scripts/distil.py $(SHIPPED)

clean: ## remove logs and caches of tools; rows, results and the environment stay
	rm -rf work .snakemake .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis

# Before anything is created or installed: can it work here?
place:
	@sh workflow/scripts/check_place.sh "$$VENV_PATH" $(firstword $(MAKECMDGOALS))

repository:
	@sh workflow/scripts/check_place.sh "$$VENV_PATH" $(firstword $(MAKECMDGOALS)) git

# An environment is current when it holds a copy of the lock files it was made from. The second is of packages whose wheels name
# dependencies that what is used of them does without.
# Where NVIDIA's driver is, so are what its GPUs are reached by and the compiler of its kernels.
CUDA_LOCK := $(if $(shell command -v nvidia-smi),requirements-cuda.lock)
LOCKS := requirements.lock requirements-no-deps.lock $(CUDA_LOCK)
# The locks are whole, so nothing is resolved; modules are compiled when they are first imported, most never are: half the time.
INSTALL = python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile

LIBRARY := workflow/edgeplan/libedgeplan.so

native: environment ## build the native library again where its sources changed: with CXX, g++ or clang++, else with ziglang

# Where there is no compiler one is installed into the environment.
$(LIBRARY): $(wildcard native/*.py native/include/* native/run/* native/src/*.* native/src/*/*.*)
	@test -n "$$CXX" || command -v g++ clang++ >/dev/null || $(INSTALL) --require-hashes -r requirements-zig.lock
	@python native/build.py

environment: place
	@cat $(LOCKS) | cmp -s - "$$VENV_PATH"/requirements.lock || { set -e; \
		"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgeplan needs Python >= 3.11; name one: make PYTHON=python3.12 ...")'; \
		echo "creating $$VENV_PATH from requirements.lock"; \
		"$(PYTHON)" -m venv "$$VENV_PATH"; \
		$(INSTALL) --require-hashes -r requirements.lock; \
		$(INSTALL) --require-hashes -r requirements-no-deps.lock; \
		$(if $(CUDA_LOCK),$(INSTALL) --require-hashes -r $(CUDA_LOCK);) \
		$(INSTALL) --no-build-isolation -e .; \
		python -c 'import lightgbm' 2>"$$VENV_PATH"/lightgbm.log || { tail -n 1 "$$VENV_PATH"/lightgbm.log >&2; \
			echo "LightGBM cannot be loaded; if libgomp.so.1 is missing: apt-get install libgomp1, then run make again" >&2; exit 1; }; \
		cat $(LOCKS) > "$$VENV_PATH"/requirements.lock; }
	@$(MAKE) --no-print-directory $(LIBRARY)

dev-environment: environment
	@cmp -s requirements-dev.lock "$$VENV_PATH"/requirements-dev.lock || { set -e; \
		echo "adding the development tools from requirements-dev.lock"; \
		$(INSTALL) --require-hashes -r requirements-dev.lock; \
		cp requirements-dev.lock "$$VENV_PATH"/requirements-dev.lock; }
