# fedast: everything starts here. Needs only Python 3.11+ (with venv) and make.
#   make demo       set up, then watch FedAST train three models at once
#   make test       set up, then run every check of the default test command
#   make ui-test    the page in a real browser, which is installed with apt-get where it may
#   make screenshots  of the page, for the documentation
#   make test-all   the same, with the long tests and those on the real data sets
#   make test-data  only the tests on the real data sets
#   make test-cuda  only the tests that need a CUDA device
#   make chaos      every fault that a federation must survive, with real processes
#   make soak       a campaign of random faults and attacks: HOURS=..., FAULTS=..., SEED=...; soak-table sums up
#   make fuzz       the decoders and every subject, for MINUTES=...
#   make flower     the Flower app on a real SuperLink, in an environment of its own
#   make cluster    runs over a real Ray of three nodes on this machine, and through submitit
#   make trackers   TensorBoard, MLflow, Trackio and W&B, in an environment of their own
#   make docs       the documentation site, into docs/_build/html; docs-quick leaves the notebook out
#   make package    sdist and wheel, installed into an empty environment and tried (PYTHON=... for another Python)
#   make bench      speed of the control plane and simulator, training switched off
#   make reproduce  every experiment of the paper that is not in results/ yet; all of them take perhaps two hours
#                   on an H200-class GPU (an hour in fp16, estimated from 123 runs), not to be tried without one;
#                   it can be interrupted
#   make results    figures, page and tables from results/
#   make bench-peers  speed of local training beside other simulators (fedast bench: alone)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 4

.PHONY: help setup demo docs docs-quick test ui-test screenshots browser chaos soak soak-table fuzz flower cluster trackers package test-all test-data test-cuda lint bench bench-peers figures reference reproduce results clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "==> Making $(VENV) and installing fedast with its pinned dependencies (a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit("fedast needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hf,deploy,export,sweep,ui,llm]'
	@touch $(STAMP)

demo: $(STAMP)
	@echo "==> Running the demo: three models, 200 clients, four algorithms, three seeds"
	$(BIN)/fedast demo --out fedast-demo --overwrite

lint: $(STAMP)
	@echo "==> Style, types and import rules"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	@echo "==> Tests"
	$(BIN)/python -m pytest -n 3  # on two cores: many of them wait for a network

# Without a browser the tests fail.
ui-test: $(STAMP) browser
	@echo "==> The page in a real browser"
	$(BIN)/python -m pytest -m browser -s tests/ui

screenshots: $(STAMP) browser
	@echo "==> Screenshots of the page, from fresh runs, into docs/images/"
	$(BIN)/python -m tests.ui.screenshots

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { echo "==> Installing chromium"; apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; } || \
	    echo "chromium cannot be installed here: install it, or put it on the PATH"; }

test-all: lint
	@echo "==> All tests: the long ones and those on the real data sets too"
	$(BIN)/python -m pytest -n 2 -m 'not cuda and not chaos and not flower and not browser and not cluster and not trackers and not package'

test-data: $(STAMP)
	@echo "==> Tests on the real data sets, which are fetched once (about 200 MB)"
	$(BIN)/python -m pytest -n 2 -m data

chaos: $(STAMP)
	@echo "==> Faults: killed clients and servers, cut links, full disks, bad uploads"
	$(BIN)/python -m pytest -m chaos -s tests/federation tests/soak

# A campaign can be spread over several calls: results are appended to soak/results.jsonl.
soak: $(STAMP)
	@echo "==> Random faults and attacks on a real federation, its books audited after each"
	$(BIN)/python -m tests.soak $(if $(HOURS),--hours $(HOURS)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(SEED),--seed $(SEED) --runs 1) --work soak/runs

soak-table: $(STAMP)
	@$(BIN)/python -m tests.soak --sum

MINUTES ?= 10
# Coverage-guided if atheris is installed in $(VENV), otherwise with Hypothesis.
fuzz: $(STAMP)
	@echo "==> Fuzzing: the decoders for $(MINUTES) minutes, then the subjects of a running federation for as long"
	$(BIN)/python -m tests.soak.fuzz --minutes $(MINUTES) --subjects $(MINUTES)

# flwr's pins clash with ours, so it has an environment of its own.
FLOWER := .venv-flower

$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	@echo "==> Making $(FLOWER) and installing fedast with Flower (a few minutes)"
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e '.[flower,deploy]' pytest pytest-xdist hypothesis
	@touch $@

flower: $(FLOWER)/.installed
	@echo "==> The Flower app: its transport, and a real SuperLink with SuperNodes on loopback"
	$(FLOWER)/bin/python -m pytest -m flower -W ignore::DeprecationWarning -s tests/federation/test_transports.py tests/federation/test_flower.py

# Ray is large (79 MB) and the default tests do not need it, so it has an environment of its own.
CLUSTER := .venv-cluster

$(CLUSTER)/.installed: pyproject.toml constraints.txt
	@echo "==> Making $(CLUSTER) and installing fedast with Ray and submitit (a few minutes)"
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster,sweep]' pytest pytest-xdist hypothesis
	@touch $@

cluster: $(CLUSTER)/.installed
	@echo "==> Runs on a real Ray of three nodes and on submitit's local executor, with faults; then speed"
	$(CLUSTER)/bin/python -m pytest -m cluster -s tests/cluster
	$(CLUSTER)/bin/python benchmarks/cluster.py --net fashion-mnist --seconds 10 --times 1 --runs 16

# Their pins clash with ours (Trackio wants an older pillow, MLflow an older pyarrow).
TRACKERS := .venv-trackers

$(TRACKERS)/.installed: pyproject.toml constraints-trackers.txt
	@echo "==> Making $(TRACKERS) and installing fedast with all trackers (a few minutes)"
	$(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-trackers.txt \
	  -e '.[track-mlflow,track-tensorboard,track-trackio,track-wandb]' pytest pytest-xdist hypothesis
	@touch $@

trackers: $(TRACKERS)/.installed
	@echo "==> Trackers: what they wrote, read with their own readers"
	$(TRACKERS)/bin/python -m pytest -m 'trackers or not trackers' -W ignore -s tests/run/test_trackers.py

# Sphinx and its extensions are of no use to anything else, so they have an environment of their own.
DOCS := .venv-docs
SITE := docs/_build

$(DOCS)/.installed: pyproject.toml constraints-docs.txt
	@echo "==> Making $(DOCS) and installing fedast with Sphinx (a few minutes)"
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-docs.txt -e '.[docs,frames]'
	@touch $@

# Warnings are errors. Nothing is fetched; the notebook and the examples in the pages are run.
docs: $(DOCS)/.installed
	@echo "==> The documentation site: what commands print and figures of a run, examples, pages"
	$(DOCS)/bin/python docs/generate.py docs/generated
	$(DOCS)/bin/sphinx-build -W --keep-going -n -q -b doctest -D nb_execution_mode=off docs $(SITE)/doctest
	$(DOCS)/bin/sphinx-build -W --keep-going -n -q -b html docs $(SITE)/html
	@echo "==> Open $(SITE)/html/index.html"

docs-quick: $(DOCS)/.installed
	@test -d docs/generated/figures || $(DOCS)/bin/python docs/generate.py docs/generated
	$(DOCS)/bin/sphinx-build --keep-going -n -q -b html -D nb_execution_mode=off docs $(SITE)/quick
	@echo "==> Open $(SITE)/quick/index.html"

# Downloads PyTorch once more, into .venv-package.
package: $(STAMP)
	@echo "==> sdist and wheel: built, installed into an empty environment, tried from an empty folder"
	rm -rf .venv-package
	FEDAST_PACKAGE_ENV=.venv-package FEDAST_PACKAGE_PYTHON=$(PYTHON) $(BIN)/python -m pytest -m package -o faulthandler_timeout=0 -s tests/test_package.py

test-cuda: $(STAMP)
	@echo "==> The exactness tests on a CUDA device"
	$(BIN)/python -m pytest -m cuda -s

bench-peers: $(STAMP)
	@echo "==> fedast beside other simulators, each in its own environment under .peers/"
	$(BIN)/python benchmarks/peers.py

bench: $(STAMP)
	@echo "==> Control plane and simulator without training"
	$(BIN)/python benchmarks/control_plane.py

figures: $(STAMP)
	@echo "==> The figure in the README and the numbers of docs/comparison.md, from a fresh demo"
	$(BIN)/fedast demo --out fedast-demo --overwrite
	cp fedast-demo/curves.png docs/images/demo.png

reference: $(STAMP)
	@echo "==> docs/algorithms.md, from the algorithms themselves"
	$(BIN)/fedast list algorithms --markdown > docs/algorithms.md

reproduce: $(STAMP)
	@echo "==> The paper's experiments into results/; runs that are there are skipped"
	$(BIN)/fedast reproduce heterogeneous all-methods homogeneous other-targets dynamic-vs-static \
	  need-for-buffer buffer-two-tasks buffer-size first-k --jobs $(JOBS)

results: $(STAMP)
	@echo "==> results/report.html, results/figures, and the tables in the documents"
	$(BIN)/fedast report results --update docs/results.md
	$(BIN)/fedast report results/faster faster faster-held faster-targets faster-homogeneous \
	  --update docs/faster.md
	cp results/faster/figures/faster-race.png docs/images/faster.png

clean:
	rm -rf $(VENV) fedast-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
