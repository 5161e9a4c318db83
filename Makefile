VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
CLIENTS_READY := $(VENV)/.clients-ready
DOCS_READY := $(VENV)/.docs-ready
BROWSER_READY := $(VENV)/.browser-ready
PACKAGE_READY := $(VENV)/.package-ready
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
ARGS ?=
PYTHONS ?= 3.13 3.12 3.11 3.14
DJANGO ?=

.PHONY: help demo test test-all lanes lint bench chaos foreign docs pictures messages services brokers contract suite coverage package clean

help:
	@echo "make demo      a small bank with a flaky gateway, to play with (ARGS=--check: a scripted minute that tests itself)"
	@echo "make test      the tests of a push, on every Django this machine's interpreters allow (ARGS='-k word' for some)"
	@echo "make test-all  all tests, as each night: more faults, MariaDB, the oldest Django in full"
	@echo "make lint      ruff, mypy, layers, spelling, missing migrations, conflict markers"
	@echo "make bench     messages per second, beside a bare pika loop (ARGS='--only once': one part)"
	@echo "make chaos     a quarter of an hour of faults, and a count of every message (ARGS='--short', '--seed 7', '--only sweep')"
	@echo "make foreign   the tests of pika, amqpstorm, node's amqplib and of Django's tasks on the embedded broker (ARGS='--on URL' for another)"
	@echo "make docs      the documentation, into docs/_build"
	@echo "make pictures  the documentation's pictures, in a real browser, from the demo (ARGS='demo admin' for some)"
	@echo "make messages  new texts into the catalogues of translations, and the catalogues compiled"
	@echo "make lanes     the tests on the Django versions other than the main one (ARGS=--pika: tests/amqp on the newest pika)"
	@echo "make services  find or install the RabbitMQ and the databases that the tests use"
	@echo "make brokers   get RabbitMQ 4.0 and 4.3 (root, Debian)"
	@echo "make contract  the broker's contract on 3.10, 4.0 and 4.3"
	@echo "make suite     the fast tests on one Python and one Django (PYTHONS=3.12 DJANGO=5.2)"
	@echo "make coverage  lines and branches of the package that fast tests run (ARGS=tests for all of them)"
	@echo "make package   the sdist and the wheel, into dist/, with their files and metadata checked (ARGS='--tag v1.2.3')"
	@echo "make clean     delete what the other targets made"

define VENV_MADE
python=$$(sh tests/tooling/find-python.sh $(PYTHONS)) && "$$python" -m venv $(VENV)
endef

$(READY): pyproject.toml
	$(VENV_MADE)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --upgrade --editable . --group dev $(if $(DJANGO),"django==$(DJANGO).*")
	touch $@ $(DEMO_READY)

$(DEMO_READY): pyproject.toml
	$(VENV_MADE)
	$(PIP) --editable .
	touch $@

$(CLIENTS_READY): $(READY)
	$(PIP) --group clients --group databases
	touch $@

$(DOCS_READY): $(READY)
	$(PIP) --group docs
	touch $@

$(BROWSER_READY): $(READY)
	$(PIP) --group browser --group themes
	touch $@

$(PACKAGE_READY): $(READY)
	$(PIP) --group package
	touch $@

demo: $(DEMO_READY)
	@$(PY) -m testproject.demo $(ARGS)

test: $(CLIENTS_READY) $(BROWSER_READY) $(DOCS_READY) $(PACKAGE_READY) services
	$(PY) -m tests.tooling.lanes --main $(ARGS)

test-all: $(CLIENTS_READY) $(BROWSER_READY) $(DOCS_READY) $(PACKAGE_READY) services
	$(PY) -m tests.tooling.lanes --all $(ARGS)

lanes: $(READY) services
	$(PY) -m tests.tooling.lanes $(ARGS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache
	$(VENV)/bin/codespell django_rmq_retry docs tests testproject *.md
	$(PY) -m django makemigrations --check --dry-run --settings=tests.settings
	! git grep -nIE '^(<{7}|[|]{7}|>{7})( |$$)'

bench: $(READY)
	$(PY) -m tests.bench $(ARGS)

chaos: $(CLIENTS_READY) services
	$(PY) -m tests.chaos $(ARGS)

foreign: $(READY)
	$(PY) -m tests.foreign $(ARGS)

# -E: Sphinx forgets the search's answers for each page that it doesn't build anew.
docs: $(DOCS_READY)
	$(PY) -m sphinx -W --keep-going -E -b html docs docs/_build/html

pictures: $(BROWSER_READY)
	$(PY) -m tests.tooling.pictures $(ARGS)

messages: $(READY)
	$(PY) -m tests.tooling.messages $(ARGS)

services: $(READY)
	$(PY) -m tests.tooling.provide

brokers:
	sh tests/tooling/get-brokers.sh trixie forky

contract: $(CLIENTS_READY) services
	RMQ_TEST_BROKERS=3.10,4.0,4.3 RMQ_TEST_REQUIRE=all $(PY) -m pytest -m contract $(ARGS)

suite: $(CLIENTS_READY) $(PACKAGE_READY) services
	$(PY) -m pytest -n auto --dist worksteal -m "not slow and not long" $(ARGS)

coverage: ARGS := $(or $(ARGS),tests/messages tests/policies tests/topology tests/handlers tests/attempts tests/operators tests/parked)
coverage: $(READY)
	$(PIP) --group coverage
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run -m pytest -n auto -m "not slow and not long and not browser" $(ARGS)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

package: $(PACKAGE_READY)
	$(PY) -m tests.tooling.package $(ARGS)

clean:
	rm -rf $(VENV) .venv-lanes build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
