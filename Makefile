# Firstline from a fresh checkout: `make demo` shows it, `make test` checks it, `make help` lists the targets.
# Needs Python 3.11 to 3.13, make and a package index. `make -C bench help` lists the measurements, `make -C tests help`
# the tests that need an environment of their own.

include environments.mk

DEMO_ARGS ?=
DIST := dist
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --constraint requirements/constraints.txt $(UPGRADE)
PEERS := bargain mlserver pytriton
# An interpreter without a tflite-runtime wheel (Python 3.12 and later) leaves that environment out.
TFLITE := $(if $(shell $(TFLITE_PYTHON) -c 'import sys; print(sys.version_info[:2] == (3, 11) or "")' 2>/dev/null),tflite)

.PHONY: help demo test check reference docs format bench clients wheel bills audit resolve lock clean rewritten environments tflite

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: .venv/demo.stamp ## install, then run both tiers on this machine, with the link cut for a while
	@$(BIN)/firstline demo $(DEMO_ARGS)

# In the background, because most of the check is mypy, which keeps one core busy.
test: rewritten ## format, lint, types, layers and every test
	@$(MAKE) check & check=$$!; $(MAKE) environments; wait $$check
	$(BIN)/pytest $(PYTEST_ARGS) $(PARALLEL)

environments: mosquitto postgres prometheus kubectl node chromium .venv-browser/stamp .venv-clients/stamp .venv-typescript/stamp $(TFLITE)

# Otherwise each pytest process would rewrite every test, and make the table of characters that Hypothesis keeps, for two
# seconds.
rewritten: .venv/test.stamp
	@($(BIN)/pytest -q --collect-only -p no:cacheprovider; \
	  $(BIN)/python -c 'from hypothesis import given, strategies; given(strategies.text())(lambda text: None)()' \
	) </dev/null >/dev/null 2>&1 &

tflite: .venv-tflite/stamp
	files=$$(grep -rl 'mark\.tflite' tests --include='test_*.py'); \
	.venv-tflite/bin/pytest $(PYTEST_ARGS) -m tflite $$files

check: .venv/test.stamp ## check format, lint, types, layers and, if Vale is installed, the English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zensical build --strict
	@if command -v vale >/dev/null; then vale *.md docs models firstline edge_agent cloud_gateway shared bench tests; fi

docs: .venv/test.stamp ## build the documentation site into site/, and refuse broken links
	$(BIN)/zensical build --strict

reference: .venv/test.stamp ## write the example settings and the reference of settings, commands and steps from the code
	PYTHONPATH=tests $(BIN)/python -m support.reference

format: .venv/test.stamp ## format the code and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ## measure both tiers next to raw ASGI; `make -C bench help` lists more
	@$(MAKE) -C bench serving

clients: .venv/test.stamp node .venv-clients/stamp .venv-typescript/stamp ## run the tests with Triton's, KServe's and generated clients
	$(BIN)/pytest $(PYTEST_ARGS) -m clients

size: ## measure what each extra takes on disk and the agent in memory (minutes)
	@$(MAKE) -C bench size

wheel: .venv/test.stamp ## build dist/firstline-*.whl
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

release: wheel ## build what a release publishes: wheel, bills of materials, SHA256SUMS (TAG=vX.Y.Z: must be this version)
	@$(MAKE) bills
	@$(MAKE) checksums

VALIDATE := --validate
bills: .venv/test.stamp ## write dist/firstline-*.cdx.json: CycloneDX bills of materials from the locks
	mkdir -p $(DIST)
	for each in edge:edge gateway:gateway console:console workbench:demo; do \
	  $(BIN)/python -W ignore -m cyclonedx_py requirements requirements/$${each#*:}.lock --pyproject pyproject.toml \
	    --output-reproducible $(VALIDATE) --output-file $(DIST)/firstline-$${each%:*}.cdx.json || exit 1; \
	done

audit: .venv/test.stamp ## look up every locked package in the advisories, and fail if one is unknown
	for lock in requirements/*.lock; do \
	  $(BIN)/python -m pip_audit --strict --requirement $$lock --require-hashes --disable-pip --progress-spinner off || exit 1; \
	done

resolve: .venv/uv.stamp ## show that every extra has wheels for x86-64 and aarch64, Python 3.11 to 3.13
	$(BIN)/python requirements/resolve.py

checksums:
	@[ -z "$(TAG)" ] || [ -e "$(DIST)/firstline-$(TAG:v%=%)-py3-none-any.whl" ] || \
	  { echo "The tag is $(TAG), but $(DIST) has the wheel of another version: correct the tag, or pyproject.toml" >&2; exit 1; }
	cd $(DIST) && sha256sum *.whl *.cdx.json > SHA256SUMS

pin-images: ## pin the base images of the Dockerfiles and of Compose by digest (needs docker with buildx)
	@$(PYTHON) requirements/pin_images.py

lock: .venv/uv.stamp ## lock the dependencies of pyproject.toml (UPGRADE=--upgrade takes the newest versions)
	$(LOCK) --output-file requirements/dev.lock pyproject.toml --extra analysis --extra data --extra grpc --extra oidc --extra otel --extra postgres --extra s3 --group dev
	echo uv | $(LOCK) --output-file requirements/installer.lock --constraint requirements/dev.lock -
	$(LOCK) --output-file requirements/demo.lock --constraint requirements/dev.lock pyproject.toml --extra workbench --group build
	$(LOCK) --output-file requirements/edge.lock --constraint requirements/dev.lock pyproject.toml --extra edge
	$(LOCK) --output-file requirements/gateway.lock --constraint requirements/dev.lock pyproject.toml --extra gateway --extra grpc --extra otel --extra postgres --extra s3
	$(LOCK) --output-file requirements/console.lock --constraint requirements/dev.lock pyproject.toml --extra oidc
	$(LOCK) --output-file requirements/build.lock --constraint requirements/dev.lock --group build
	$(LOCK) --output-file requirements/tflite.lock pyproject.toml --extra tflite --group test --group build
	$(LOCK) --output-file requirements/clients.lock --group clients
	$(LOCK) --output-file requirements/ray.lock --constraint requirements/dev.lock pyproject.toml --extra ray --extra workbench --extra postgres --group test --group build
	$(LOCK) --output-file requirements/train.lock --constraint requirements/dev.lock pyproject.toml --extra train --group test --group build
	$(LOCK) --output-file requirements/perf-analyzer.lock --group perf-analyzer
	for folder in browser typescript; do npm --prefix requirements/$$folder install --silent --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved; done
	for peer in $(PEERS); do $(LOCK) --output-file requirements/peers/$$peer.lock --group peer-$$peer; done

clean: ## remove the environments, the caches and the built files
	rm -rf .venv .venv-* dist build site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
