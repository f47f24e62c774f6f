# Firstline from a fresh checkout: `make demo` shows it, `make test` checks it, `make help` lists the rest.
# Needs Python 3.11 to 3.13, make and a package index; everything it installs goes into .venv and .venv-*.

PYTHON ?= python3.11
TFLITE_PYTHON ?= python3.11
PYTEST_ARGS ?= -q
# Half of the suite waits for processes that it started, so that three keep two cores at work; a file's tests share those
# processes, and stay together. In the folders' order, chaos and e2e first: by the number of tests, which is xdist's, the
# longest files come last.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder
DEMO_ARGS ?=
BENCH_ARGS ?=
PEERS := bentoml litserve mlserver pytriton rayserve
SEED ?= 1

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
UV := $(BIN)/uv
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --constraint requirements/constraints.txt $(UPGRADE)
CHAOS = PYTHONPATH=tests:bench $(BIN)/python -m chaos.run --seed $(SEED)
# The interpreter without a runtime for it (Python 3.12 and later, or none at all) leaves that environment out.
TFLITE := $(if $(shell $(TFLITE_PYTHON) -c 'import sys; print(sys.version_info[:2] == (3, 11) or "")' 2>/dev/null),tflite)

# $(call install,ENVIRONMENT,LOCK): uv takes seconds; where only pip is set up to reach the index, pip does the same.
define install
$(UV) pip install --quiet --python $(1)/bin/python --require-hashes --requirement $(2) || \
  $(BIN)/python -m pip --python $(1)/bin/python install --quiet --require-hashes --requirement $(2)
endef
# $(call install_project,ENVIRONMENT): this checkout, editable, by the build backend that the lock brought.
define install_project
$(UV) pip install --quiet --python $(1)/bin/python --offline --no-deps --no-build-isolation --editable .
endef

# $(call debian,PROGRAM,PACKAGE,BEFORE): installs a system's package, where it may and the program is not there.
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
command -v $(1) >/dev/null || echo '$(1) is not installed: what needs it is left out' >&2
endef

.PHONY: help demo test check format mosquitto postgres kubectl node chromium wrk tflite ray train clients perf-analyzer tuf-conformance lock wheel resolve size evaluate certificate \
  bench bench-peers hot-path loadgen olive bench-routing bench-hardware bench-fleet alarm \
  chaos chaos-full update-kill soak fuzz audit sbom stampede scale heartbeats behind idle decision agent escalation mqtt-bench deliveries wear timing line \
  overload admission fresh clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: .venv/demo.stamp ## install, then run the whole line on this machine, link cut included
	@$(BIN)/firstline demo $(DEMO_ARGS)

# Whom pytest starts reads what another has compiled: Firstline's own modules, and pytest's rewritten plugins.
test: export PYTHONDONTWRITEBYTECODE :=
test: rewritten check mosquitto postgres kubectl node chromium .venv-clients/stamp $(TFLITE) ## format, lint, types, import contracts and every test
	$(BIN)/pytest $(PYTEST_ARGS) $(PARALLEL)

# In the background, for the check leaves a core: each of pytest's processes would rewrite all tests in a fresh checkout.
.PHONY: rewritten
rewritten: .venv/test.stamp
	@$(BIN)/pytest -q --collect-only -p no:cacheprovider </dev/null >/dev/null 2>&1 &

check: .venv/test.stamp ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/test.stamp ## let ruff format, and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What tests and benchmarks start, from Debian where nothing else brought it; without it those tests are left out, and fail
# where CI=true. PostgreSQL's package would start a cluster of its own, which nothing here needs.
mosquitto:
	$(call debian,mosquitto,mosquitto)

postgres:
	$(call debian,initdb,postgresql,mkdir -p /etc/postgresql-common && \
	  { [ -e $(CLUSTERS) ] || echo 'create_main_cluster = false' | $$as_root tee $(CLUSTERS) >/dev/null; })

kubectl:
	$(call debian,kubectl,kubernetes-client)

node:
	$(call debian,node,nodejs)

chromium:
	$(call debian,chromium,chromium)

wrk:
	$(call debian,wrk,wrk)

tflite: .venv-tflite/stamp ## the tests marked tflite, with tflite-runtime and numpy 1 (Python 3.11)
	files=$$(grep -rl 'mark\.tflite' tests --include='test_*.py'); \
	.venv-tflite/bin/pytest $(PYTEST_ARGS) -m tflite $$files

ray: .venv-ray/stamp ## the tests marked ray, with Ray: a cluster of two machines, one of them killed (a minute or two)
	files=$$(grep -rl 'mark\.ray' tests --include='test_*.py'); \
	.venv-ray/bin/pytest $(PYTEST_ARGS) -m ray $$files

train: .venv-train/stamp ## the tests marked train, with PyTorch: a student is taught
	files=$$(grep -rl 'mark\.train' tests --include='test_*.py'); \
	.venv-train/bin/pytest $(PYTEST_ARGS) -m train $$files

clients: .venv/test.stamp .venv-clients/stamp ## the tests marked clients, with the Triton and KServe clients
	$(BIN)/pytest $(PYTEST_ARGS) -m clients

perf-analyzer: .venv/test.stamp .venv-perf-analyzer/stamp ## Triton's load generator against both tiers, over REST and gRPC (a minute)
	$(BIN)/pytest $(PYTEST_ARGS) tests/integration/test_perf_analyzer.py

# The suite is on GitHub alone, and pins a python-tuf of its own: the client runs in .venv, the suite in its environment.
tuf-conformance: .venv/test.stamp .venv-conformance/stamp ## The Update Framework's own suite against our client (needs GitHub)
	.venv-conformance/bin/pytest $(PYTEST_ARGS) --pyargs tuf_conformance \
	  --entrypoint "$$(pwd)/$(BIN)/python $$(pwd)/tests/conformance/client.py"

lock: .venv/uv.stamp ## make the locks from pyproject.toml (UPGRADE=--upgrade for the newest versions)
	$(LOCK) --output-file requirements/dev.lock pyproject.toml --extra analysis --extra console --extra grpc --extra postgres --extra s3 --group dev
	echo uv | $(LOCK) --output-file requirements/installer.lock --constraint requirements/dev.lock -
	$(LOCK) --output-file requirements/demo.lock --constraint requirements/dev.lock pyproject.toml --extra workbench --group build
	$(LOCK) --output-file requirements/edge.lock --constraint requirements/dev.lock pyproject.toml --extra edge
	$(LOCK) --output-file requirements/gateway.lock --constraint requirements/dev.lock pyproject.toml --extra gateway --extra grpc --extra postgres --extra s3
	$(LOCK) --output-file requirements/console.lock --constraint requirements/dev.lock pyproject.toml --extra console
	$(LOCK) --output-file requirements/build.lock --constraint requirements/dev.lock --group build
	$(LOCK) --output-file requirements/tflite.lock pyproject.toml --extra tflite --group test --group build
	$(LOCK) --output-file requirements/clients.lock --group clients
	$(LOCK) --output-file requirements/ray.lock --constraint requirements/dev.lock pyproject.toml --extra ray --extra postgres --group test --group build
	$(LOCK) --output-file requirements/train.lock --constraint requirements/dev.lock pyproject.toml --extra train --group test --group build
	$(LOCK) --output-file requirements/loadgen.lock --group loadgen
	$(LOCK) --output-file requirements/olive.lock --constraint requirements/dev.lock --group olive
	$(LOCK) --output-file requirements/perf-analyzer.lock --group perf-analyzer
	for peer in $(PEERS); do $(LOCK) --output-file requirements/peers/$$peer.lock --group peer-$$peer; done

wheel: .venv/test.stamp ## build dist/firstline-*.whl
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

resolve: .venv/uv.stamp ## show that every extra has wheels for x86-64 and aarch64, Python 3.11 to 3.13
	$(BIN)/python bench/resolve.py

size: wheel ## measure what firstline[edge] takes on a device
	$(BIN)/python bench/size.py dist/firstline-*.whl

bench: .venv/test.stamp wrk mosquitto wheel ## both tiers beside the raw limit of this machine: table, plots, raw numbers (ten minutes)
	$(BIN)/python bench/bench_serving.py --wheel dist/firstline-*.whl $(BENCH_ARGS)

bench-peers: .venv/test.stamp wrk $(PEERS:%=.venv-peers/%/stamp) ## the gateway beside MLServer, pytriton, LitServe, BentoML and Ray Serve (15 minutes)
	$(BIN)/python bench/bench_peers.py $(BENCH_ARGS)

bench-fleet: .venv/test.stamp mosquitto ## rollouts: false aborts, bad models found, a thousand simulated devices, twenty agents (eleven minutes)
	PYTHONPATH=tests:bench $(BIN)/python bench/bench_fleet.py $(BENCH_ARGS)

hot-path: .venv/test.stamp ## what a request costs the gateway in its process, without a network: time and calls (a minute)
	$(BIN)/python bench/hot_path.py

loadgen: .venv/test.stamp .venv-loadgen/stamp ## MLPerf LoadGen against both tiers: SingleStream, Server, Offline (minutes)
	$(BIN)/python bench/bench_loadgen.py $(BENCH_ARGS)

olive: .venv/test.stamp .venv-train/stamp .venv-olive/stamp ## firstline compress beside Olive on the same models, in one run (GBs to install; two hours with trainings)
	PYTHONPATH=tests:bench $(BIN)/python bench/bench_hardware.py --only compress $(BENCH_ARGS)

evaluate: .venv/test.stamp ## accuracy and edge share of the digits bundle, and of two real pairs where their data is there
	$(BIN)/python bench/evaluate_pairs.py

certificate: .venv/test.stamp ## whether certified thresholds keep their word on two real pairs, and what they keep (minutes)
	$(BIN)/python bench/bench_routing.py --only contract

bench-routing: .venv/test.stamp ## promises kept, alarms, value, on time, on budget: tables, plots and figures (minutes)
	$(BIN)/python bench/bench_routing.py

# With PyTorch, without which no student is taught; Olive's rows are there where `make olive` installed it.
bench-hardware: .venv/test.stamp .venv-train/stamp ## where a model had best run, splits, chains, energy, the controller, predictions, what profiling costs, compression, several executors, memory and heat (minutes for each, an hour for each training; BENCH_ARGS='--only PART', '--quick')
	PYTHONPATH=tests:bench $(BIN)/python bench/bench_hardware.py $(BENCH_ARGS)

alarm: .venv/test.stamp ## how often audits alarm falsely, and how soon they find a shift
	$(BIN)/python bench/alarm.py

timing: .venv/test.stamp ## how well a link's time is predicted, how soon a change is noticed, and what that costs
	$(BIN)/python bench/timing.py

line: .venv/test.stamp mosquitto ## round trips, corrections, promises, start and memory on this machine (a minute)
	$(BIN)/python bench/line.py

stampede: .venv/test.stamp ## what a gateway sees when it comes back and 1,000 devices waited (simulated; minutes)
	$(BIN)/python bench/stampede.py

idle: .venv/test.stamp mosquitto ## what an agent sends that nobody asks, in bytes a day over HTTP and MQTT (two minutes)
	$(BIN)/python bench/idle.py

chaos: .venv/test.stamp mosquitto ## kills, outages, an hour offline and a soak, at a tenth or less of chaos-full (SEED=1)
	$(CHAOS)

chaos-full: .venv/test.stamp mosquitto ## the same with all its numbers (hours)
	$(CHAOS) --full

update-kill: .venv/test.stamp ## a device killed at every persisted step of an update, with 500 seeds (minutes)
	FIRSTLINE_SEEDS=500 $(BIN)/pytest $(PYTEST_ARGS) $(PARALLEL:loadfile=load) tests/property/test_update_kill.py

soak: .venv/test.stamp ## twenty minutes of steady load: memory, descriptors, threads, bytes written
	$(CHAOS) --full --only soak

overload: .venv/test.stamp ## ten times more requests than the gateway can answer: goodput, deadlines, recovery, fairness (minutes)
	$(BIN)/python bench/overload.py

admission: .venv/test.stamp ## whom to let in: the predicted wait beside AIMD and a latency gradient (simulated; a minute)
	PYTHONPATH=tests $(BIN)/python bench/admission.py

deliveries: .venv/test.stamp ## what it costs the gateway to answer each delivery once, beside a bare fsync
	$(BIN)/python bench/deliveries.py

wear: .venv/test.stamp ## what a request writes to the device's flash, by route (two minutes)
	$(BIN)/python bench/wear.py

scale: .venv/test.stamp mosquitto postgres ## what a request, a connection and a delivery cost, and fleets of 1 to 1,000,000 by that (minutes)
	PYTHONPATH=tests:bench $(BIN)/python bench/scale.py

heartbeats: .venv/test.stamp mosquitto ## 1,000 and 10,000 devices' heartbeats over MQTT, and a rollout to them: processor time, memory, delays (five minutes)
	PYTHONPATH=tests:bench $(BIN)/python bench/heartbeats.py

behind: .venv/test.stamp ## what a call to a server behind the gateway costs, beside httpx
	$(BIN)/python bench/behind.py

decision: .venv/test.stamp ## what one decision costs on the device, in microseconds
	$(BIN)/python bench/decision.py

agent: .venv/test.stamp ## what a request costs on the device beyond the model, in process
	$(BIN)/python bench/agent.py

escalation: .venv/test.stamp ## what HTTP clients take for one escalation, beside each other
	$(BIN)/python bench/escalating_client.py

mqtt-bench: .venv/test.stamp mosquitto ## an escalation over MQTT QoS 1 beside raw paho, through one Mosquitto
	$(BIN)/python bench/mqtt.py

fuzz: .venv/test.stamp ## a million damaged inputs for the decoders, and requests made from both descriptions (minutes, SEED=1)
	$(CHAOS) --full --only fuzz

audit: .venv/test.stamp ## look up every locked package in the advisories (where the package index itself is reached)
	$(BIN)/python bench/audit.py

sbom: .venv/test.stamp ## write dist/firstline-*.cdx.json: what device, gateway, console and workbench install
	$(BIN)/python bench/sbom.py

fresh: ## clone this checkout into an empty folder and time `make demo` there
	python3 bench/fresh.py

clean: ## remove the environments, the caches and what was built
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/uv.stamp: requirements/installer.lock
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# The tests start hundreds of processes, also where PYTHONDONTWRITEBYTECODE keeps them from compiling what they import.
.venv/test.stamp: export UV_COMPILE_BYTECODE := 1
# The development lock holds all that the demo needs, in the same versions.
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

# On a Python that Ray has no wheels for, this fails, and nothing else does.
.venv-ray/stamp: requirements/ray.lock pyproject.toml .venv/uv.stamp
	[ -x .venv-ray/bin/python ] || $(PYTHON) -m venv --without-pip .venv-ray
	$(call install,.venv-ray,$<)
	$(call install_project,.venv-ray)
	touch $@

.venv-clients/stamp: requirements/clients.lock .venv/uv.stamp
	[ -x .venv-clients/bin/python ] || $(PYTHON) -m venv --without-pip .venv-clients
	$(call install,.venv-clients,$<)
	touch $@

# Other servers, as their users install them: one that does not install is reported by the benchmark, and stops nothing.
.venv-peers/%/stamp: requirements/peers/%.lock .venv/uv.stamp
	[ -x .venv-peers/$*/bin/python ] || $(PYTHON) -m venv --without-pip .venv-peers/$*
	{ $(call install,.venv-peers/$*,$<); } && touch $@ || echo 'the environment of $* could not be built' >&2

# It wants Debian's libb64 besides, which nothing else does: it is unpacked, not installed.
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

.venv-olive/stamp: requirements/olive.lock .venv/uv.stamp
	[ -x .venv-olive/bin/python ] || $(PYTHON) -m venv --without-pip .venv-olive
	$(call install,.venv-olive,$<)
	touch $@

.venv-loadgen/stamp: requirements/loadgen.lock .venv/uv.stamp
	[ -x .venv-loadgen/bin/python ] || $(PYTHON) -m venv --without-pip .venv-loadgen
	$(call install,.venv-loadgen,$<)
	touch $@
