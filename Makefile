# Every target sets up what it needs first, so that a fresh machine needs one command.

# Bytecode is kept, whatever the machine says: without it a server takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest -q
# What make test runs is repeatable, property tests included. Tests that fail are tried once more with
# nothing beside them; those that pass only then are named at the very end of the run, to be mended.
REPEATABLE := --hypothesis-profile=ci
TRY := $(PYTHON) .ci/second_try.py
# Four workers for two cores: tests of processes, pages and faults wait for a good part of their time. Files
# go out in the order of tests/conftest.py, and not by how many tests they hold.
TOGETHER := $(REPEATABLE) -n 4 --dist loadfile --no-loadscope-reorder -m "not alone"
# Only the files that hold such tests: to collect all of them took as long as many of these tests.
ALONE = $(REPEATABLE) -m alone $(shell grep -rlE 'mark\.alone' tests --include='test_*.py')
POSTGRES_15 := /usr/lib/postgresql/15/bin/postgres
# What depends on the version of Postgres: not what asks, at length, what our own rules add up to.
# Callers' connections are among it: what their drivers say about a transaction, the server has said.
# Only folders that are there: pytest -n takes a missing one for an empty one.
ON_15 := $(wildcard tests/sql tests/engine tests/db/adapters tests/db/connections/test_transient_errors.py)

# What takes the least time for the mistakes that it finds: the rules of SQL, and what calls them, without
# processes, HTTP or pages. About 140 of the 300 s of processor time of sql, engine and client (2026-11).
QUICK := $(addprefix tests/,base client contract engine failures models net security) \
  $(addprefix tests/sql/,access claim config credits delivery lifecycle limits submit) \
  -k "not races" -m "not alone and not one_version"

.DEFAULT_GOAL := help
.PHONY: help setup demo essays feedback studio marking scanner model quick test older check bench faults schema surface last screenshots docs preview lock

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

setup: .venv/.ready ## Make .venv with exactly what requirements.lock names

.venv/.ready: pyproject.toml requirements.lock .ci/setup .ci/uv
	@.ci/setup
	@touch $@

demo: setup ## Run five systems with visitors on one page, to look at and to break
	@$(PYTHON) -m penstock dev

essays: setup ## Run the essay app: embedded Postgres, worker, model, a page in the browser
	@$(PYTHON) examples/essays

feedback: setup ## Run the feedback app: fifty pupils, one model, and a switch to stop it
	@$(PYTHON) examples/feedback

studio: setup ## Run the image studio: customers with plans, prices in credits, a model that draws
	@$(PYTHON) examples/studio

scanner: setup ## Run the package scanner: scans that hang and crash, and recover by themselves
	@$(PYTHON) examples/scanner

marking: setup ## Run the marking app: thirty answers, a function elsewhere, one at a time
	@$(PYTHON) examples/marking

model: setup ## Fetch a small real model (93 MB) for `penstock model --real`
	@.ci/fetch-model

quick: check ## Run checks and the core's main tests in 2 minutes: no workers, HTTP, pages, races, browser
	$(PYTEST) $(REPEATABLE) -n 2 --dist loadfile --no-loadscope-reorder $(QUICK)

test: check ## Run everything: static checks, then all tests
	@.ci/install-chromium
	@.ci/install-php
	@.ci/install-fault-tools
	$(TRY) '$(TOGETHER)' '$(ALONE)'

older: setup ## Run what depends on the version of Postgres on 15, as CI does after make test
	@.ci/install-postgres-15
	@if test -x $(POSTGRES_15); then \
	  set -x; $(TRY) '$(TOGETHER) --postgres 15 $(ON_15) -m "not alone and not one_version"'; \
	else \
	  echo "Postgres 15 is not installed: these were not run on it: $(ON_15)"; \
	fi

check: setup ## Run the static checks: format, lint, layers, types, migrations
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/lint-imports --no-logo
	.venv/bin/mypy
	.venv/bin/squawk src/penstock/sql/migrations/*/up*.sql

bench: setup ## Measure the engine, the worker, positions, credits, live streams and the overview
	$(PYTHON) bench/engine.py
	$(PYTHON) bench/worker.py
	$(PYTHON) bench/position.py
	$(PYTHON) bench/credits.py
	$(PYTHON) bench/http.py
	$(PYTHON) bench/sse.py
	$(PYTHON) bench/overview.py

# What of it, by file or test: make faults ONLY=tests/faults/test_campaign.py. The seed that a run has told
# repeats it: SEED=7. MINUTES=6 is the length of the campaign, WEATHER=kill_api,deaf its faults, FIGURES=file
# keeps what it measured.
faults: setup ## Run storms, kills and the long forms of tests (takes long)
	@.ci/install-fault-tools
	$(PYTEST) --faults $(ONLY) $(addprefix --seed ,$(SEED)) $(addprefix --minutes ,$(MINUTES)) \
	  $(addprefix --weather ,$(WEATHER)) $(addprefix --figures ,$(FIGURES))

schema: setup ## Rewrite tests/contract/schema.sql from a migrated database
	$(PYTEST) tests/contract/test_schema.py --write-schema

surface: setup ## Rewrite tests/contract/surface: routes, document, commands, SQL calls, Python names
	$(PYTEST) tests/contract/test_surface.py --write-surface

last: ## Keep this commit's package as the last version, for tests/upgrade; at each release
	git archive --format=tar $(or $(COMMIT),HEAD) src/penstock | xz -9e > tests/upgrade/last.tar.xz

# But for demo.png: that is /demo with the model stopped, taken by hand.
screenshots: setup ## Make the pictures of the documents anew, docs/pictures
	@.ci/install-chromium
	$(PYTEST) tests/browser/pictures.py --screenshots docs/pictures

docs: setup ## Write the reference from the code, check every link, build the site into site/
	cd docs && ../$(PYTHON) -m _generate
	$(PYTHON) tests/contract/requirements.py
	$(PYTHON) .ci/check_links.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

preview: setup ## Show the documentation while it is written, at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve --no-strict --livereload

lock: setup ## Rewrite requirements.lock: the newest versions that pyproject.toml allows
	.ci/uv lock --upgrade
	.ci/uv export --quiet --no-emit-project --all-groups --no-header \
	  --format requirements-txt --output-file requirements.lock
