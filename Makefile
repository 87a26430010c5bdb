# Two commands on a fresh machine: `make run` and `make test`. Each first makes .venv, here in
# the checkout, if it is missing or older than pyproject.toml.

VENV := .venv
CANDIDATES = $(strip $(PYTHON) python3 python3.13 python3.12 python3.11)
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input -qq
# Python compiles what it imports; to compile every file of torch and others takes a minute more.
INSTALL := $(PIP) install --no-compile
# Dynamo without its dependencies: the tests have those that a worker and the frontend need, and one
# of the others cannot be had from the package index alone.
DYNAMO := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["optional-dependencies"]["dynamo"])

.PHONY: run test docs wheel clean

run: $(VENV)/.run-stamp
	@$(VENV)/bin/paceline demo $(ARGS)

test: $(VENV)/.test-stamp
	@scripts/check

docs: $(VENV)/.test-stamp
	@$(VENV)/bin/mkdocs build --strict

# The wheel of this processor and the source distribution, in dist/.
wheel: $(VENV)/.made-stamp
	@$(PIP) install build && $(VENV)/bin/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made-stamp: pyproject.toml
	@python=; for candidate in $(CANDIDATES); do \
		if "$$candidate" -c '$(USABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "paceline needs Python 3.11 or newer with its venv and ensurepip modules;" \
			"tried: $(CANDIDATES). Name another with make PYTHON=/path/to/python3." >&2; \
		exit 1; \
	fi; \
	echo "Preparing $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	@touch $@

$(VENV)/.run-stamp: $(VENV)/.made-stamp
	@$(INSTALL) -e '.[serve]'
	@touch $@

$(VENV)/.test-stamp: $(VENV)/.made-stamp tests/versions.txt
	@echo "Installing the tools of the tests"
	@scripts/browser & \
	$(INSTALL) -e '.[serve,dev]' -c tests/versions.txt && \
	$(INSTALL) --no-deps $$($(VENV)/bin/python -c '$(DYNAMO)') && \
	wait
	@touch $(VENV)/.run-stamp $@
