# Two commands are enough to start: `make quickstart` and `make test`. Both make the environment if it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RECIPE ?= recipes/tiny_cpu

# Spinning OpenMP threads beside any other load cost a factor of four on small machines.
export OMP_WAIT_POLICY ?= PASSIVE
export HF_HUB_DISABLE_TELEMETRY = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: install quickstart ladder quickstart-short test test-slow conformance bench quality style card clean help

help:
	@echo "make quickstart   environment, then the whole recipe $(RECIPE): report and card"
	@echo "make test         environment, then the fast tests"
	@echo "make test-slow    the tests that take longer"
	@echo "make conformance  transformers' own test suite on our models (downloads it)"
	@echo "make bench        tables of ratios against the stock stack"
	@echo "make ladder       the small runs of recipes/ladder_cpu and the law fitted to them (half an hour)"
	@echo "make quality      lint and format check;  make style mends them"
	@echo "make card         model_cards/tiny_cpu.md again, from a fresh run"

install: $(VENV)/.installed

# torch comes first and from the constraints: another package's wish for torch may bring gigabytes of GPU libraries.
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "error: Python %d.%d found; transformers 5.24 needs 3.11 or newer: make PYTHON=python3.11 ..." % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch numpy
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all,dev]"
	@touch $@

quickstart: install
	$(BIN)/hf-pretrain run $(RECIPE)

# Every stage, smaller: what continuous integration runs.
SHORT := --set 1_corpus.sample.scale=0.25 --set 2_pretrain.train_tokens=131072 --set 2_pretrain.warmup_steps=5 \
	--set 3_anneal.train_tokens=49152 --set 4_long_context.train_tokens=32768 --set 5_sft.curation.max_examples=48 \
	--set 5_sft.num_train_epochs=1 --set 6_evaluate.max_tokens_per_source=2048 --set 6_evaluate.max_benchmark_items=48
quickstart-short: install
	$(BIN)/hf-pretrain run $(RECIPE) --run-dir runs/tiny_cpu_short $(SHORT)

test: install
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not slow"

test-slow: install
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m slow

# transformers' ModelTesterMixin and its tensor-, expert-parallel and FSDP mixins, from its source distribution.
conformance: install
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/conformance/conformance_strata.py

bench: install
	@for file in tests/benchmarks/*.py; do echo "== $$file"; HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python $$file || exit 1; done

quality: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

style: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Half an hour: the runs, the fit, its charts. The table in the recipe's README is then to be brought up to date.
ladder: install
	$(BIN)/hf-pretrain ladder recipes/ladder_cpu --run
	$(BIN)/hf-pretrain fit runs/ladder_cpu --plot recipes/ladder_cpu --csv recipes/ladder_cpu/points.csv

card: quickstart
	cp runs/tiny_cpu/7_push/model/README.md model_cards/tiny_cpu.md
	cp runs/tiny_cpu/facts.json model_cards/tiny_cpu.facts.json

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
