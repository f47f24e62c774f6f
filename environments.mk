# Environments and system packages, for the Makefiles of this folder, bench/ and tests/. Recipes run in this folder.
# Everything that is installed goes into .venv and .venv-*.

PYTHON ?= python3.11
TFLITE_PYTHON ?= python3.11
PYTEST_ARGS ?= -q
# Half of the tests wait for processes that they start, so four workers keep two cores busy. The tests of a file share
# processes and stay together. `tests/conftest.py` decides the order of the files.
PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder
SEED ?= 1

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# The first process that imports a module compiles it for the hundreds that follow.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
UV := $(BIN)/uv

# $(call install,ENVIRONMENT,LOCK): installs with uv, or with pip if only pip can reach the index.
define install
$(UV) pip install --quiet --python $(1)/bin/python --require-hashes --requirement $(2) || \
  $(BIN)/python -m pip --python $(1)/bin/python install --quiet --require-hashes --requirement $(2)
endef
# $(call install_project,ENVIRONMENT): installs this checkout, editable, with the locked build backend.
define install_project
$(UV) pip install --quiet --python $(1)/bin/python --offline --no-deps --no-build-isolation --editable .
endef

# $(call debian,PROGRAM,PACKAGE,BEFORE): installs a Debian package if the program is missing and this user may.
CLUSTERS := /etc/postgresql-common/createcluster.conf
define debian
@PATH="$$PATH:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; if command -v $(1) >/dev/null; then exit; fi; \
as_root=; [ "$$(id -u)" = 0 ] || as_root='sudo -n'; \
if command -v apt-get >/dev/null && $$as_root true 2>/dev/null; then \
  export DEBIAN_FRONTEND=noninteractive; \
  $(if $(3),$$as_root $(3);) \
  $$as_root apt-get update -q && $$as_root apt-get install -q -y --no-install-recommends $(2); \
fi </dev/null || true; \
PATH="$$PATH:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; \
command -v $(1) >/dev/null || echo '$(1) is not installed: tests and measurements that need it are skipped' >&2
endef

# Programs that tests and measurements start, from Debian if they are missing. Without one its tests are skipped, and fail
# if CI=true. The PostgreSQL package would start a cluster of its own, which nothing here needs.
.PHONY: mosquitto postgres prometheus kubectl node chromium wrk
mosquitto:
	$(call debian,mosquitto,mosquitto)
postgres:
	$(call debian,initdb,postgresql,mkdir -p /etc/postgresql-common && \
	  { [ -e $(CLUSTERS) ] || echo 'create_main_cluster = false' | $$as_root tee $(CLUSTERS) >/dev/null; })
# Its package would start a server of its own.
prometheus:
	$(call debian,promtool,prometheus,mkdir -p /etc/systemd/system && \
	  $$as_root ln -sf /dev/null /etc/systemd/system/prometheus.service)
kubectl:
	$(call debian,kubectl,kubernetes-client)
node:
	$(call debian,node,nodejs)
chromium:
	$(call debian,chromium,chromium)
wrk:
	$(call debian,wrk,wrk)

.venv/uv.stamp: requirements/installer.lock
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# The development lock contains the demo's packages in the same versions.
.venv/test.stamp: requirements/dev.lock pyproject.toml .venv/uv.stamp
	$(call install,.venv,$<)
	$(call install_project,.venv)
	touch $@ .venv/demo.stamp

.venv/demo.stamp: requirements/demo.lock pyproject.toml .venv/uv.stamp
	$(call install,.venv,$<)
	$(call install_project,.venv)
	touch $@

.venv-tflite/stamp: requirements/tflite.lock pyproject.toml .venv/uv.stamp
	[ -x .venv-tflite/bin/python ] || $(TFLITE_PYTHON) -m venv --without-pip .venv-tflite
	$(call install,.venv-tflite,$<)
	$(call install_project,.venv-tflite)
	touch $@

.venv-train/stamp: requirements/train.lock pyproject.toml .venv/uv.stamp
	[ -x .venv-train/bin/python ] || $(PYTHON) -m venv --without-pip .venv-train
	$(call install,.venv-train,$<)
	$(call install_project,.venv-train)
	touch $@

# This fails, and nothing else, on a Python without Ray wheels.
.venv-ray/stamp: requirements/ray.lock pyproject.toml .venv/uv.stamp
	[ -x .venv-ray/bin/python ] || $(PYTHON) -m venv --without-pip .venv-ray
	$(call install,.venv-ray,$<)
	$(call install_project,.venv-ray)
	touch $@

.venv-clients/stamp: requirements/clients.lock .venv/uv.stamp
	[ -x .venv-clients/bin/python ] || $(PYTHON) -m venv --without-pip .venv-clients
	$(call install,.venv-clients,$<)
	touch $@

# The generator and the compiler of TypeScript clients. Without npm their tests are skipped, and fail if CI=true.
.venv-typescript/stamp: requirements/typescript/package.json requirements/typescript/package-lock.json
	mkdir -p .venv-typescript
	cp $^ .venv-typescript
	npm ci --silent --ignore-scripts --prefix .venv-typescript && touch $@ || echo 'npm could not install openapi-typescript' >&2

# axe-core, which checks the console's pages, and an identity provider. Without npm their tests are skipped, and fail if
# CI=true.
.venv-browser/stamp: requirements/browser/package.json requirements/browser/package-lock.json
	mkdir -p .venv-browser
	cp $^ .venv-browser
	npm ci --silent --ignore-scripts --prefix .venv-browser && touch $@ || echo 'npm could not install axe-core' >&2

# Other servers, as their users install them. The benchmark reports one that cannot be installed.
.venv-peers/%/stamp: requirements/peers/%.lock .venv/uv.stamp
	[ -x .venv-peers/$*/bin/python ] || $(PYTHON) -m venv --without-pip .venv-peers/$*
	{ $(call install,.venv-peers/$*,$<); } && touch $@ || echo 'the environment of $* could not be built' >&2

# It needs Debian's libb64, which is unpacked into the environment.
.venv-perf-analyzer/stamp: requirements/perf-analyzer.lock .venv/uv.stamp
	[ -x .venv-perf-analyzer/bin/python ] || $(PYTHON) -m venv --without-pip .venv-perf-analyzer
	$(call install,.venv-perf-analyzer,$<)
	chmod +x .venv-perf-analyzer/bin/perf_analyzer
	cd .venv-perf-analyzer && { apt-get download -q libb64-0d || { apt-get update -q && apt-get download -q libb64-0d; }; } && \
	  for package in libb64-0d_*.deb; do dpkg-deb -x $$package .; done
	touch $@

.venv-conformance/stamp: .venv/uv.stamp
	[ -x .venv-conformance/bin/python ] || $(PYTHON) -m venv --without-pip .venv-conformance
	$(UV) pip install --quiet --python .venv-conformance/bin/python \
	  "tuf-conformance @ git+https://github.com/theupdateframework/tuf-conformance@1bc18916ee35f753b6eb8ee19dabb98449ca7326"
	touch $@


