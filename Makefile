# From a bare checkout: `make demo` trains and shows the model, `make test` checks what takes minutes, `make test-all` everything
# (deployments of real processes, notebooks, benchmarks), `make docs` builds the site.
# All set themselves up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
SLIM   := $(VENV)/demo

.PHONY: demo test test-all lint types docs notebooks benchmark clean

demo: $(SLIM)
	rm -rf runs/demo
	$(BIN)/fedunseen run digit-pairs-gaussian --out runs/demo/closed-form --json
	$(BIN)/fedunseen run digit-pairs --out runs/demo/trained --json
	$(BIN)/fedunseen predict runs/demo/closed-form examples/digit-pairs/*.png --among unseen --top 3
	@echo
	@echo "Open runs/demo/closed-form/report.html and runs/demo/trained/report.html in a browser."
	@echo "Draw digits yourself, and add a class: $(BIN)/fedunseen serve runs/demo/closed-form"

# Two processes on two cores: threads within them would only wait for each other.
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP) lint types
	$(TESTS) -m "not slow"

test-all: $(STAMP) lint types
	$(TESTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --num-workers 2

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html in a browser."

# Runs the tutorials again and keeps what they print; a test says when that is needed.
notebooks: $(STAMP)
	$(BIN)/python docs/site/notebooks.py docs/tutorials/*.ipynb

benchmark: $(STAMP)
	$(BIN)/python benchmarks/trainer.py

# Made anew when the dependencies change: the demo needs only the page's server, the tests need all.
$(SLIM): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]'
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(SLIM)

clean:
	rm -rf $(VENV) runs build dist
