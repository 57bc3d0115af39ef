# Two commands for a newcomer: `make demo`, then `make test`. Everything else: `make help`.
# The programs are in .venv, created with uv if it is installed, else with venv and pip; the settings
# of uv and pip (index, proxy, cache) are their own. PYTHON=... chooses the Python to make it from,
# UV=no takes venv and pip in any case.
# constraints.txt pins every package to the version that CI tested, for the Pythons that it names.

SHELL = /bin/sh
PY = .venv/bin/python
UV = uv
QUICK = -m "not slow and not kills and not oracle and not browser and not kafka"
# one process more than there are cores: tests also wait, for disks, sockets and other processes
PROCESSES = $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4)))
SPHINX = .venv/docs/bin/python -m sphinx
# what a run took, by test function; `make test` begins it and `make rest` adds to it
RECORDED = .venv/durations.json
SUITE = $(PY) -m pytest $(QUICK) -n $(PROCESSES) --dist loadgroup --record-durations=$(RECORDED)
NOTEBOOKS = $(PY) -m pytest -p nbmake.pytest_plugin --nbmake --nbmake-timeout=600 --timeout 1800 -n logical --maxprocesses 2
TWO = notebooks/01-quickstart.ipynb notebooks/03-coordinator.ipynb

.PHONY: help demo test rest test-all near durations lab docs check slow histories matrix services cluster spark-histories damage kills oracle kafka browser bench measure strangers lowest constraints render clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: .venv/.demo ## stream a month of flights into a Hudi table and check it (ARGS="--days 3")
	@$(PY) -m hoodie_nb demo $(ARGS)

test: check ## check, then the quick suite: samples of all tests, all scenarios, two notebooks
	@rm -f $(RECORDED)
	$(SUITE) --suite=quick $(ARGS)
	$(NOTEBOOKS) $(TWO)

rest: .venv/.test ## what `make test` leaves out, for the same commit (EACH=4: of a test function, 4 seconds)
	$(SUITE) --suite=rest $(if $(EACH),--each=$(EACH)) $(ARGS)
	$(NOTEBOOKS) $(filter-out $(TWO), $(wildcard notebooks/*.ipynb))

test-all: ## all tests but those with their own command, all notebooks
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory rest

near: check ## the quick suite, and all tests of the folders that differ from main
	$(SUITE) --suite=near $(ARGS)

durations: ## run `make test-all`, and save what each test took in tests/durations.json
	@$(MAKE) --no-print-directory test-all
	cp $(RECORDED) tests/durations.json

check: .venv/.test ## lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

slow: .venv/.test ## the slow tests
	$(PY) -m pytest -m slow --timeout 3600 $(ARGS)

histories: .venv/.test ## a thousand random histories of each pipeline (ARGS=50 for fewer)
	$(PY) tests/histories.py $(or $(ARGS),1000)

matrix: .venv/.test ## 200 random tables: versions, keys, types, rules, new columns (ARGS=40 for fewer)
	$(PY) tests/run_matrix.py $(or $(ARGS),200)

services: .venv/.test ## 100 random histories of services and crashes inside them (ARGS=20 for fewer, ARGS="--java 100" with Java)
	$(PY) tests/run_services.py $(or $(ARGS),100)

cluster: .venv/.test ## streams through a Spark cluster, with kills, and a year of flights (HOODIE_NB_DAYS=20: fewer)
	$(PY) -m pytest -m "spark and (slow or kills)" --timeout 3600 tests/cluster $(ARGS)

spark-histories: .venv/.test ## 200 random histories on real Spark (ARGS=20 for fewer)
	$(PY) tests/spark_histories.py $(or $(ARGS),200)

damage: .venv/.test ## two thousand tests with one damaged file each (ARGS=100 for fewer)
	$(PY) tests/damage.py $(or $(ARGS),2000)

kills: .venv/.test ## the tests that end the demo with kill -9
	$(PY) -m pytest -m "kills and not slow" --timeout 1800 $(ARGS)

oracle: .venv/.test ## check our tables with Java Hudi (installs it, needs JDK 17; PART=2: half of the tests)
	$(PY) -m pytest -m oracle --timeout 1800 $(if $(PART),--part=$(PART)) $(ARGS)

kafka: .venv/.test ## stream a topic of a real Kafka broker, with kills (installs it and Spark 4.2, needs JDK 17)
	$(PY) -m pytest -m kafka --timeout 1800 $(ARGS)

browser: .venv/.test ## test JupyterLab in Chromium (needs Debian's chromium, or root to install it)
	$(PY) -m pytest -m browser --timeout 1800 $(ARGS)

lab: .venv/.notebooks ## open the tour in JupyterLab, with its table of contents
	@export JUPYTERLAB_WORKSPACES_DIR="$(CURDIR)/.venv/workspaces"; \
	test -d .venv/workspaces || \
	  $(PY) -m jupyter lab workspaces import binder/jupyterlab-workspace.json >/dev/null; \
	mkdir -p .venv/share/jupyter/lab/settings && \
	  cp binder/overrides.json .venv/share/jupyter/lab/settings; \
	$(PY) -m jupyter lab $(ARGS)

docs: .venv/.notebooks .venv/docs/.made ## build the site of the documentation in build/site; a broken link is an error
	@rm -rf build/pages build/site
	$(PY) docs/site/stage.py build/pages
	$(SPHINX) -q -W --keep-going -j 2 -c docs/site -d build/doctrees build/pages build/site
	$(PY) docs/site/run_pages.py build/site/runs
	$(PY) docs/site/links.py build/site
	@echo "Open build/site/index.html"

bench: .venv/.bench ## upserts, ours and others: a table, results.json, a picture (ARGS="--rounds 1")
	@for sizes in "--base 200000 --batch 20000" "--base 2000000 --batch 200000"; do \
	  $(PY) benchmarks/upserts.py $$sizes $(ARGS) || exit 1; done; $(PY) benchmarks/figures.py

measure: .venv/.bench ## the other benchmarks, each of one part
	@for script in benchmarks/*.py; do case $$script in */upserts.py | */figures.py) continue ;; esac; \
	  echo "== $$script"; $(PY) "$$script" $(ARGS) || exit 1; done

render: .venv/.test ## execute the notebooks and save their outputs (ARGS="01-quickstart.ipynb")
	@$(PY) notebooks/render.py $(ARGS)

strangers: .venv/.test ## the README's commands in a new clone: with uv, a blank in the path, not root, no Java
	@.ci/strangers $(ARGS)

lowest: ## the core tests, with the lowest versions that pyproject.toml declares
	@.ci/lowest $(ARGS)

constraints: .venv/.test ## write constraints.txt again, with the versions in .venv
	@{ grep '^#' constraints.txt; \
	   if command -v $(UV) >/dev/null 2>&1; then $(UV) pip freeze --python $(PY) --exclude-editable; \
	   else $(PY) -m pip freeze --exclude-editable; fi; } > .venv/constraints.txt
	@mv .venv/constraints.txt constraints.txt; touch .venv/.demo .venv/.bench .venv/.notebooks .venv/.test

clean: ## remove .venv, caches and the demo's warehouse
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: one stamp per extra, rebuilt when one of the two files changes -------------

PINNED = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.venv/.demo .venv/.bench .venv/.notebooks .venv/.test: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory .venv-exists
	@extra=$(@F); extra=$${extra#.}; began=$$(date +%s); \
	echo "Installing the packages of [$$extra] into .venv; the first time takes a minute or two"; \
	pins=; if $(PY) -c "$(PINNED)"; then pins="-c constraints.txt"; fi; \
	if command -v $(UV) >/dev/null 2>&1 && $(UV) pip install --quiet --python $(PY) $$pins -e ".[$$extra]"; \
	then :; else \
	  $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null || exit 1; \
	  $(PY) -m pip install --quiet --disable-pip-version-check $$pins -e ".[$$extra]" || exit 1; \
	fi; \
	case $$extra in \
	  test) touch .venv/.demo .venv/.bench .venv/.notebooks ;; \
	  bench | notebooks) touch .venv/.demo ;; \
	esac; \
	touch $@; echo "Installed in $$(( $$(date +%s) - began )) s"

# Sphinx has an environment of its own, so that no package of the library depends on its versions
.venv/docs/.made: docs/site/requirements.txt
	@$(MAKE) --no-print-directory .venv-exists
	@echo "Installing Sphinx into .venv/docs"; rm -rf .venv/docs; \
	if command -v $(UV) >/dev/null 2>&1 && $(UV) venv --quiet --python $(PY) .venv/docs \
	  && $(UV) pip install --quiet --python .venv/docs/bin/python -r $<; \
	then :; else \
	  rm -rf .venv/docs; $(PY) -m venv .venv/docs || exit 1; \
	  .venv/docs/bin/python -m pip install --quiet --disable-pip-version-check -r $< || exit 1; \
	fi; \
	touch $@

.PHONY: .venv-exists
.venv-exists:
	@if $(PY) -c '' 2>/dev/null; then exit 0; fi; \
	rm -rf .venv; found=; \
	good='import sys; sys.exit(sys.version_info < (3, 11))'; \
	for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  if "$$python" -c "$$good" 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if command -v $(UV) >/dev/null 2>&1; then \
	  $(UV) venv --quiet --python "$${found:->=3.11}" .venv && exit 0; \
	  rm -rf .venv; \
	fi; \
	if [ -z "$$found" ]; then \
	  echo "No Python 3.11 or newer on the PATH (python3: $$(python3 --version 2>&1))." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	  exit 1; \
	fi; \
	"$$found" -m venv .venv && exit 0; \
	rm -rf .venv; \
	echo "$$found cannot make a virtual environment (Debian, Ubuntu: install python3-venv)" >&2; \
	exit 1
