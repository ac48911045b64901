# Run `make` for the list of targets.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
STAMP := $(VENV)/.made
PY := $(VENV)/bin/python
# Three at once on two cores, because many tests wait. Tests share servers and Spark within a process, so whole files go to each, in the order
# of their names: the slow ones are not the last.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder
CODE := $(wildcard tubemq_spark pyspark_tubemq tests benchmarks scripts noxfile.py)
NOX := $(PY) -m nox --session

# Spark starts many Python processes. Without the stored bytecode, each would compile this package again.
unexport PYTHONDONTWRITEBYTECODE

# Spark starts its workers with this interpreter, not with the one the driver runs on.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-release faults simulate simulate-faults fuzz test-monitoring matrix check bench real-tubemq proto docs format dist sbom notebooks java spark

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.demo) spark  ## stream rows from an embedded TubeMQ through Spark, show them and the lag, end by itself
	$(PY) -m tubemq_spark.cli demo

test: prepared  ## everything in `make check`, then the tests; those marked `thorough` are left to `make test-all`
	$(PYTEST) -m "not thorough"

test-all: prepared $(VENV)/.filesystems  ## the same with the thorough tests, and the coverage: real servers, wide matrices, the wrap of message ids
	@scripts/need prometheus || [ "$(CI)" != true ]
	$(PYTEST) --durations=30 --cov=tubemq_spark --cov-report=term:skip-covered

.PHONY: prepared spark-classes
prepared: $(STAMP)
	@scripts/need java $(if $(filter true,$(CI)),,optional)
	@scripts/need rust $(if $(filter true,$(CI)),,optional)
	@$(MAKE) -j 2 --output-sync --no-print-directory check spark-classes $(if $(shell command -v cargo),rust)

.PHONY: speedups rust
speedups: $(VENV)/.speedups  ## build the compiled decoders of the folder speedups, and install them in .venv

rust: $(VENV)/.speedups  # what `make check` is for Python
	cd speedups && export CARGO_TARGET_DIR=$(CURDIR)/build/cargo MAKEFLAGS= && cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings && cargo test --quiet

$(VENV)/.speedups: $(STAMP) $(wildcard speedups/*.toml speedups/src/*.rs)
	@scripts/need rust
	CARGO_TARGET_DIR=$(CURDIR)/build/cargo $(PY) -m pip install --quiet --disable-pip-version-check --force-reinstall ./speedups
	@touch $@

spark-classes: $(STAMP)  # the tests' Spark starts from this archive: one core makes it while the other one checks
	$(PY) -m tests.spark_jvm

test-release: $(STAMP) java  ## the contract and the differential tests, on the server jars in the folder TUBEMQ_SERVER_JARS
	@test -d "$$TUBEMQ_SERVER_JARS" || { echo "make test-release: set TUBEMQ_SERVER_JARS to a folder of TubeMQ server jars" >&2; exit 2; }
	$(PYTEST) tests/contract tests/differential -m "real and not thorough"

faults: $(STAMP) java  ## bad networks, dying servers, hostile ones: real TubeMQ, in real time
	$(PY) -m pytest benchmarks/trials tests/spark/test_hostile_servers.py

simulate: $(STAMP)  ## ten minutes of schedules in a simulated world; SIMULATE="--minutes 60" for more, SIMULATE=--all for all empty cells
	$(PY) -m tests.simulation $(SIMULATE)

simulate-faults: $(STAMP)  ## plant one fault after the other in the connector's code; the simulated world must find each
	$(PY) -m tests.simulation.planted $(SIMULATE)

fuzz: $(STAMP)  ## a million random and damaged inputs for all decoders; FUZZ='--count 10000 --seed 2 --only frames' for others
	$(PY) -m tests.fuzz $(or $(FUZZ),--count 1000000)

test-monitoring: $(STAMP) spark  ## each query of the Grafana dashboard and each alert rule, on a real Prometheus
	@scripts/need prometheus
	CI=true $(PY) -m pytest tests/monitoring

matrix: $(STAMP) spark  ## one wheel on Spark 4.0 to 4.3 and on Connect, each in an environment of its own; MATRIX=--quick for less
	$(NOX) matrix -- $(MATRIX)

dist: $(STAMP) spark  ## build wheel and sdist into dist/ twice, compare, check, install and try them; DIST=--quick for less
	$(NOX) dist -- $(DIST)

sbom: $(STAMP)  ## write the bill of materials (CycloneDX) of the wheel in dist/
	$(NOX) sbom

notebooks: .venv-notebooks/.made spark  ## run the notebooks, each in a new kernel; NOTEBOOKS='--write NAME' keeps the outputs of one
	.venv-notebooks/bin/python -m scripts.notebooks $(NOTEBOOKS)

.PHONY: lint types
check: types site lint  ## lint, format, types and the documentation's site

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	$(PY) -m mypy $(CODE)

format: $(STAMP)  ## put imports and layout right
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

.PHONY: pictures
pictures: $(VENV)/.pictures spark  ## record the demo and other commands as docs/images/demo.svg and docs/images/cli-*.svg
	$(PY) -m scripts.pictures

.PHONY: site site-serve
site: $(VENV)/.docs  ## build the documentation's site into build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

site-serve: $(VENV)/.docs  ## show the site on http://127.0.0.1:8000 and again when a page changes
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --strict

bench: $(VENV)/.bench .venv-user/.speedups java  ## measure against limits, the Java client and Spark-Kafka; BENCH="read write" for parts, BENCH=--list lists them
	$(PY) -m benchmarks --python .venv-user/bin/python $(BENCH)

.PHONY: soak cluster
soak: $(VENV)/.bench java  ## an hour of queries on a real TubeMQ under faults; SOAK="--minutes 180" for longer
	$(PY) -m benchmarks.soak $(SOAK)

cluster: $(STAMP) java  ## the wheel on a standalone Spark cluster and a real TubeMQ; CLUSTER="--manager yarn" for YARN
	$(NOX) cluster -- $(CLUSTER)

real-tubemq: $(STAMP) java  ## bring up a real TubeMQ, print its address and a PySpark line to paste
	$(PY) -m tests.real

proto: $(STAMP)  ## generate tubemq_spark/protocol/pb from proto/
	$(PY) scripts/generate_proto.py

docs: $(STAMP)  ## write the pages of docs/ and the module that are made from the code
	$(PY) scripts/generate_docs.py

java:
	@scripts/need java

spark:
	@scripts/need spark

$(STAMP): pyproject.toml
	@scripts/need python "$(PYTHON)"
	@echo "Installing Spark and the tools of developers into $(VENV): about two minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What the demo needs, in the same environment, so that a first try does not wait for the tools of developers.
$(VENV)/.demo: pyproject.toml
	@scripts/need python "$(PYTHON)"
	@echo "Installing Spark and what else the demo needs into $(VENV): about a minute, once"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[cli,spark]'
	@touch $@

# Environments of users: what the commands of README.md and notebooks/README.md install, and nothing else.
.venv-user/.made: EXTRAS := cli,spark
.venv-notebooks/.made: EXTRAS := spark,notebooks
.venv-user/.made .venv-notebooks/.made: pyproject.toml $(shell find tubemq_spark pyspark_tubemq -name '*.py')
	@scripts/need python "$(PYTHON)"
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check '.[$(EXTRAS)]'
	@touch $@

# Only part `ceiling` of `make bench` uses them.
.venv-user/.speedups: .venv-user/.made $(wildcard speedups/*.toml speedups/src/*.rs)
	@scripts/need rust
	CARGO_TARGET_DIR=$(CURDIR)/build/cargo .venv-user/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall ./speedups
	@touch $@

# Tools that only some targets need: make $(VENV)/.EXTRA installs that extra.
$(VENV)/.%: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,$*]'
	@touch $@
